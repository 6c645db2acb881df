"""Names that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import interbasin as ib
from interbasin._lazy import lazy_names


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``slow`` with the public module ``part`` and the name ``thing`` in it."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text(
        "from interbasin._lazy import lazy_names\n"
        "__all__ = ['here', 'thing']\n"
        "here = 1\n"
        "__getattr__, __dir__ = lazy_names(__name__, ('part',), {'thing': 'slow.part'})\n",
        "utf-8",
    )
    (tmp_path / "slow" / "part.py").write_text("made = []\nthing = object()\nmade.append(thing)\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("slow")
    for name in ("slow", "slow.part"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_when_it_is_first_used(package):
    assert "slow.part" not in sys.modules and "thing" not in vars(package)
    assert package.thing is package.part.thing
    assert vars(package)["thing"] is package.thing and len(package.part.made) == 1


def test_only_public_names_are_listed(package):
    assert dir(package) == ["here", "part", "thing"] and "slow.part" not in sys.modules


def test_a_name_that_is_not_there_is_told(package):
    with pytest.raises(AttributeError, match="module 'slow' has no attribute 'nothing'"):
        _ = package.nothing
    find, _ = lazy_names("slow", (), {"gone": "slow.part"})
    with pytest.raises(AttributeError, match="gone"):
        find("gone")


def test_our_packages_list_what_is_public_and_nothing_else():
    assert dir(ib) == sorted(ib.__all__)
    for package in (ib, ib.checkpoints):
        assert not [name for name in dir(package) if name.startswith("_") and name != "__version__"]
        assert "TYPE_CHECKING" not in dir(package) and "annotations" not in dir(package)
        assert all(hasattr(package, name) for name in dir(package))


def test_the_machinery_is_light():
    script = (
        "import interbasin._lazy, sys; print([name for name in ('torch', 'numpy', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_old_names_still_work_and_say_where_they_live_now():
    with pytest.warns(DeprecationWarning, match=r"interbasin\.data\.open_data is now interbasin\.datasets\.open_data"):
        assert ib.data.open_data is ib.datasets.open_data
    with pytest.warns(DeprecationWarning, match=r"interbasin\.datasets\.load_digits"):
        from interbasin.data import load_digits
    assert load_digits is ib.datasets.load_digits and "data" not in dir(ib)
    with pytest.warns(DeprecationWarning, match="translate_vectors"):
        assert callable(ib.data.translate_vectors)
    with pytest.raises(AttributeError, match=r"'interbasin\.data' has no attribute 'nothing'"):
        _ = ib.data.nothing
