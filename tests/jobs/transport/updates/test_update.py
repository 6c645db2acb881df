"""Updates: what they hold, sums, ranks and ties; LoRAs of every form compared with what PEFT makes of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.jobs.transport.examples import (
    CLOSE,
    PARTS,
    Tied,
    adapted,
    randomise,
    small,
    tokens,
)
from tests.test_storage import left_in, refused

from interbasin.checkpoints.lora import Factors, product
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.merge import merge
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")


SETTINGS: dict[str, dict[str, Any]] = {
    "layers": {},
    "root of the rank": {"use_rslora": True},
    "ranks of their own": {"rank_pattern": {"up": 5, "^down": 1}, "alpha_pattern": {"square": 7, "up": 1}},
    "both": {"use_rslora": True, "rank_pattern": {"u.": 5}, "alpha_pattern": {"u.": 7}},
    "a table": {"target_modules": ["table", "up"]},
    "a convolution": {"target_modules": ["conv", "up"]},
    "a bias behind B": {"lora_bias": True},
    "a head that is trained whole": {"modules_to_save": ["head"]},
    "a norm and a head": {"modules_to_save": ["head", "norm"]},
    "all biases": {"bias": "all"},
    "all biases and a head that is trained whole": {"bias": "all", "modules_to_save": ["head"]},
    "biases of its layers": {"bias": "lora_only"},
    "one expression": {"target_modules": ".*(up|down)"},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_form_of_lora_is_what_peft_merges_and_comes_back_from_a_folder(settings, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = small()
    network = adapted(base, **SETTINGS[settings])
    network.save_pretrained(tmp_path / "adapter")
    before = copy.deepcopy(base.state_dict())
    answer = network(tokens())
    in_memory, on_disk = Update.of(network, base), Update.of(tmp_path / "adapter", base)
    expected = network.merge_and_unload().state_dict()
    for update in (in_memory, on_disk, Update.of(str(tmp_path / "adapter"), base)):
        assert update.is_low_rank and not update.does_nothing and not update.notes
        total = update.added_to(base)
        for name, tensor in expected.items():
            torch.testing.assert_close(total.state_dict()[name], tensor, msg=name, **CLOSE)
        torch.testing.assert_close(total(tokens()), answer, **CLOSE)
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    notes = on_disk.write(tmp_path / "written", base="some/base", model=base)
    assert notes == ()
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), answer, **CLOSE)
    again = Update.of(tmp_path / "written", base)
    assert set(again.factors) == set(on_disk.factors) and again.rank == on_disk.rank
    for name in on_disk:
        torch.testing.assert_close(again.tensor(name), on_disk.tensor(name), msg=name, **CLOSE)
    # What PEFT saves of what it loaded says the same.
    loaded.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(Update.of(tmp_path / "saved", base).added_to(base)(tokens()), answer, **CLOSE)
    torch.testing.assert_close(loaded.merge_and_unload()(tokens()), answer, **CLOSE)


def test_a_tied_tensor_is_updated_once():
    base = Tied().double()
    tuned = randomise(base)
    update = Update.of(tuned, base)
    assert set(update) == {"table.weight", "mid.weight", "mid.bias"}
    total = update.added_to(base)
    assert total.head.weight is total.table.weight
    torch.testing.assert_close(total(tokens()), tuned(tokens()), **CLOSE)
    both = {"table.weight": update.tensor("table.weight"), "head.weight": update.tensor("table.weight").clone()}
    assert set(Update.of(both, base)) == {"table.weight"} == set(Update.of({"head.weight": both["head.weight"]}, base))


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["table"]},
        {"target_modules": ["head"]},
        {"target_modules": ["mid"], "modules_to_save": ["head"]},
    ],
    ids=["a table", "a head", "a head trained whole"],
)
def test_what_peft_trains_apart_stays_apart(settings, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = Tied().double().eval()
    network = adapted(base, **settings)
    update = Update.of(network, base)
    assert {"table.weight", "head.weight"} <= set(update) and "one tensor in the base" in update.notes[0]
    refused(lambda: update.added_to(base), WiringError, ("table.weight", "head.weight", "untie=True"))
    total = update.added_to(base, untie=True)
    torch.testing.assert_close(total(tokens()), network(tokens()), **CLOSE)
    assert base.head.weight is base.table.weight
    update.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), network(tokens()), **CLOSE)


def test_rank_and_loss_of_a_truncation():
    base = small()
    update = Update.of(randomise(base), base)
    cut, lost = update.truncated(2)
    assert cut.rank == 2 and set(lost) == set(cut.factors) == set(kinds_of(base))
    assert cut.transposed == cut.tables == {"table.weight"}
    for name, share in lost.items():
        left = (update.tensor(name) - cut.tensor(name)).norm() / update.tensor(name).norm()
        assert float(left) == pytest.approx(share, abs=1e-9) and share > 0
    again, more = cut.truncated(1)
    directly, _ = update.truncated(1)
    for name in again.factors:
        assert again.factors[name].a.shape[0] == 1 and again.factors[name].a.dtype == torch.float64
        torch.testing.assert_close(again.tensor(name), directly.tensor(name), msg=name, **CLOSE)
        left = (again.tensor(name) - cut.tensor(name)).norm() / cut.tensor(name).norm()
        assert float(left) == pytest.approx(more[name], abs=1e-9)
    same, none = cut.truncated(5)
    assert all(same.factors[name] is pair for name, pair in cut.factors.items()) and not any(none.values())
    refused(lambda: update.truncated(0), DataError, ("rank must be a whole number of at least 1",))
    bare = Update({"up.weight": torch.ones(12, 8)})
    refused(lambda: bare.truncated(1), DataError, ("give the network as model=",))
    assert bare.truncated(1, base)[0].rank == 1


def test_a_tied_table_is_stored_whole_and_so_it_is_not_cut(tmp_path):
    base = Tied().double()
    update = Update.of(randomise(base), base)
    cut, lost = update.truncated(1, base)
    assert set(cut.factors) == set(lost) == {"mid.weight"}
    torch.testing.assert_close(cut.tensor("table.weight"), update.tensor("table.weight"), **CLOSE)
    cut.write(tmp_path / "adapter", base=None, model=base)
    peft = import_extra("peft", "This test", "hf")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(tokens()), cut.added_to(base)(tokens()), **CLOSE)
    apart = {"table.weight": update.tensor("table.weight"), "head.weight": torch.ones_like(base.head.weight)}
    assert set(Update.of(apart, base).truncated(1, base)[0].factors) == {"table.weight", "head.weight"}


def test_what_did_not_change_gets_no_factors():
    base = small()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        tuned.up.weight += 1
    assert set(Update.of(tuned, base).truncated(3)[0].factors) == {"up.weight"}


def test_sums_keep_factors_where_all_have_them():
    base = small()
    first, second = Update.of(adapted(base), base), Update.of(adapted(base, r=3, target_modules=["up", "table"]), base)
    third = Update.of(randomise(base), base)
    total = Update.combined([first, second], [2.0, -1.0])
    assert total.rank == 5 and set(total.factors) == {f"{one}.weight" for one in (*PARTS, "table")} and not total.dense
    expected = 2 * first.tensor("up.weight") - second.tensor("up.weight")
    torch.testing.assert_close(total.tensor("up.weight"), expected, **CLOSE)
    mixed = Update.combined([first, third])
    assert not mixed.factors and mixed.label == f"{first.label}, {third.label}"
    torch.testing.assert_close(
        mixed.tensor("up.weight"), first.tensor("up.weight") + third.tensor("up.weight"), **CLOSE
    )
    torch.testing.assert_close(mixed.tensor("norm.bias"), third.tensor("norm.bias"), **CLOSE)
    assert third.scaled(-2).norm() == pytest.approx(2 * third.norm())
    refused(lambda: Update.combined([]), DataError, ("takes updates and a weight for each",))
    refused(lambda: Update.combined([first], [1, 2]), DataError, ("found 1 and 2",))
    other = Update({"up.weight": torch.ones(3, 3)}, label="another")
    refused(lambda: Update.combined([first, other]), ShapeError, ("up.weight", "(3, 3) in another"))


def test_an_adapter_that_was_never_trained_does_nothing():
    peft = import_extra("peft", "This test", "hf")
    base = small()
    network = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(target_modules=[*PARTS])).double()
    assert Update.of(network, base).does_nothing and Update.of(network, base).norm() == 0
    assert Update.of(copy.deepcopy(base), base).does_nothing and Update().does_nothing
    a, b = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert Update(factors={"up.weight": Factors(a, b)}).does_nothing
    assert not Update(factors={"up.weight": Factors(a, b + 1)}).does_nothing


def test_factors_that_are_none_are_refused(tmp_path):
    pair = Factors(torch.ones(2, 3), torch.ones(4, 2))
    refused(lambda: Update({"w": torch.ones(4, 3)}, {"w": pair}), DataError, ("w of the update has factors and",))
    refused(lambda: Update(factors={"w": Factors(pair.a, pair.a)}), ShapeError, ("factors of w", "(2, 3)"))
    refused(lambda: Update(factors={"w": Factors(pair.a * torch.nan, pair.b)}), DataError, ("w", "NaN"))
    refused(lambda: Update(factors={"w": pair}).tensor("v"), UnknownNameError, ("'v'",))
    missing = Update(factors={"fc.weight": pair})
    refused(lambda: missing.write(tmp_path / "a", base=None, model=small()), UnknownNameError, ("fc.weight",))
    assert left_in(tmp_path) == []
    assert repr(missing) == "Update(the update: 1 tensors, 1 of rank up to 2)"
    assert torch.equal(missing.tensor("fc.weight"), product(pair.a, pair.b)) and missing.shape("fc.weight") == (4, 3)


def test_updates_are_merged_by_ties():
    base = small()
    updates = [Update.of(adapted(base), base), Update.of(randomise(base), base)]
    merged = Update.combined(updates, density=0.5)
    assert not merged.factors and set(merged) == {*updates[0], *updates[1]}
    first, second = (update.added_to(base) for update in updates)
    expected = merge([first, second], "ties", base=base, density=0.5).state_dict()
    for name, tensor in merged.added_to(base).state_dict().items():
        if name in updates[0]:  # elsewhere the other update is zero for that merge, and nothing for this one
            torch.testing.assert_close(tensor, expected[name], msg=name, **CLOSE)
    refused(lambda: Update.combined(updates, density=0.0), DataError, ("density",))
