"""The names that users are promised, whatever else has been imported."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import types

import pytest
import torch

import interbasin
import interbasin as ib
from interbasin.errors import MissingExtraError


def submodules() -> list[str]:
    found = pkgutil.walk_packages(interbasin.__path__, "interbasin.")
    return ["interbasin", *(module.name for module in found if not module.name.endswith("__main__"))]


def import_everything() -> list[types.ModuleType]:
    modules = []
    for name in submodules():
        try:
            modules.append(importlib.import_module(name))
        except MissingExtraError:
            continue
    return modules


@pytest.mark.parametrize("name", submodules())
def test_every_name_that_is_listed_exists(name):
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(listed) == len(set(listed))
    assert [one for one in listed if not hasattr(module, one)] == []


@pytest.mark.parametrize(
    "name", ["interbasin", *(f"interbasin.{folder}" for folder in ("datasets", "errors", "evaluate", "fit", "vectors"))]
)
def test_public_modules_list_their_names(name):
    assert importlib.import_module(name).__all__


def test_packages_list_their_names():
    packages = [module for module in import_everything() if hasattr(module, "__path__")]
    assert [module.__name__ for module in packages if not getattr(module, "__all__", None)] == []


def test_the_names_can_be_seen():
    assert set(ib.__all__) <= set(dir(ib))
    assert sorted(dir(ib)) == dir(ib)
    for package in (ib.datasets, ib.evaluate, ib.fit, ib.maps, ib.models, ib.statistics, ib.vectors, ib.wiring):
        assert set(package.__all__) <= set(dir(package))


def test_a_star_import_brings_the_listed_names():
    namespace: dict[str, object] = {}
    exec("from interbasin import *", namespace)
    assert set(ib.__all__) - {"__version__"} <= set(namespace)


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match="'interbasin' has no attribute 'rebasinn'"):
        _ = ib.rebasinn
    with pytest.raises(ImportError):
        exec("from interbasin import rebasinn")
    with pytest.raises(AttributeError, match=r"'interbasin\.checkpoints' has no attribute 'wires'"):
        _ = ib.checkpoints.wires


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    import_everything()
    assert inspect.isclass(ib.PairedMoments) and inspect.isclass(ib.LayerwiseMoments)
    assert issubclass(ib.InterbasinError, Exception)
    assert inspect.isclass(ib.Wiring) and inspect.isclass(ib.Alignment) and inspect.isclass(ib.Correspondence)
    assert all(
        inspect.isfunction(verb) for verb in (ib.wire, ib.carry, ib.fold_norms, ib.interpolate, ib.merge, ib.record)
    )
    for folder in ("datasets", "errors", "evaluate", "fit", "maps", "models", "statistics", "vectors", "wiring"):
        assert isinstance(getattr(ib, folder), types.ModuleType)
    for package in (ib.datasets, ib.errors, ib.evaluate, ib.fit, ib.maps, ib.models, ib.statistics, ib.vectors):
        hidden = [name for name in package.__all__ if isinstance(getattr(package, name), types.ModuleType)]
        assert hidden == []


def test_every_promised_name_works_after_every_module_was_imported(tmp_path):
    import_everything()
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turn = ib.maps.Orthogonal([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    y = turn(x)
    for map in (
        turn,
        ib.maps.Identity(3),
        ib.maps.Permutation([2, 0, 1]),
        ib.maps.SignedPermutation([2, 0, 1], [1, 1, -1]),
        ib.maps.Linear(2 * torch.eye(3)),
        ib.maps.Affine(torch.eye(3), torch.ones(3)),
        ib.maps.Blocks([ib.maps.Identity(1), ib.maps.Identity(2)]),
    ):
        assert isinstance(map, ib.maps.Map) and map.matrix.shape == (map.target_width, map.source_width) == (3, 3)
        assert torch.allclose(map.inverse()(map(x)), x)
        assert map.dual().source_width == 3 and (map @ turn)(x).shape == x.shape
        assert ib.maps.compose(map, turn) == map @ turn
        map.save(tmp_path / map.kind)
        assert ib.maps.load(tmp_path / map.kind) == map

    moments = ib.PairedMoments(grams=True)
    moments.update(x, y)
    assert moments.count == 20 and moments.cross(centered=True).shape == (3, 3)
    assert moments.merge(moments).count == 40
    layers = ib.LayerwiseMoments()
    layers.update({"a": x}, {"b": y})
    assert float(layers.cka()[0, 0]) == pytest.approx(1.0)

    assert torch.allclose(ib.fit.procrustes(moments).map.matrix, turn.matrix)
    for name in ("assignment", "cca", "least_squares", "orthogonalised", "procrustes", "sinkhorn", "stiefel"):
        function = getattr(ib.fit, name)
        assert ib.fit.get(name) is ib.fit.get(name.replace("_", "-")) is function
        found = function(x, y)
        assert isinstance(found, ib.fit.Fit) and found.status in ib.fit.STATUSES
        assert found.residual >= 0 and found.explained <= 1 and found.steps >= 1
    assert set(ib.fit.names()) == {name.replace("_", "-") for name in ib.fit.__all__} & set(ib.fit.names())
    assert isinstance(ib.fit.polar(torch.eye(2)), ib.fit.Polar)

    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).double()
    wiring = ib.wire(model, x)
    assert isinstance(wiring, ib.Wiring) and wiring.coverage == 1.0 and wiring.check(model, x, seed=1) < 1e-12
    alignment = wiring.sample(seed=1)
    assert isinstance(alignment, ib.Alignment) and torch.allclose(ib.carry(model, alignment)(x), model(x))
    assert ib.Correspondence.by_role(wiring, wiring) == ib.Correspondence.identity(wiring)
    carried = ib.carry(model.state_dict(), alignment)
    assert torch.equal(carried["0.bias"], alignment.maps["0"](model.state_dict()["0.bias"]))
    labelled = [(x, torch.arange(20) % 2)]
    found = ib.evaluate.barrier(
        model, ib.carry(model, alignment), labelled, loss=None, points=3, path="lerp", ends=None
    )
    assert float(found) == found.metrics["barrier"] >= 0 and len(found.loss) == 3
    assert torch.equal(ib.interpolate(model, model, 0.5, path="lerp")[0].weight, model[0].weight)
    assert torch.allclose(ib.merge([model, model], "lerp")(x), model(x))
    assert ib.wiring.wire is ib.wire and ib.wiring.Wiring is ib.Wiring


def test_importing_the_package_imports_neither_torch_nor_any_other_heavy_library():
    heavy = ("torch", "numpy", "scipy", "sklearn", "pyarrow", "rich", "ot")
    script = f"import interbasin, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and done.stderr == ""


def test_looking_at_the_names_imports_nothing():
    script = "import interbasin, sys; dir(interbasin); interbasin.__version__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_the_folders_of_the_jobs_are_there_from_the_first_moment():
    code = "import interbasin as ib; print(ib.jobs.transport.PreparedTransport.__name__, ib.jobs.translate.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PreparedTransport", "interbasin.jobs.translate"]
