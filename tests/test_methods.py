"""Methods are listed in one kind of table, and found by the names that users write."""

from __future__ import annotations

import pytest

from interbasin.errors import DataError, UnknownNameError
from interbasin.methods import Method, MethodTable

TABLE = MethodTable(
    "method of adding",
    [
        Method("plain-sum", "peano:89", "add all", sum, variants=("left", "right")),
        Method("longest", "peano:89", "take the longest", max, options={"key": None}),
    ],
)


def test_a_method_is_found_by_its_name_with_hyphens_or_underscores():
    assert TABLE["plain-sum"] is TABLE["plain_sum"] and TABLE["longest"].function is max
    assert TABLE.names == tuple(TABLE) == ("plain-sum", "longest") and len(TABLE) == 2
    assert "longest" in TABLE and "shortest" not in TABLE


def test_an_unknown_method_lists_the_known_ones_nearest_first():
    with pytest.raises(UnknownNameError, match="no method of adding named 'longst'; try one of: longest, plain-sum"):
        _ = TABLE["longst"]


def test_a_variant_is_the_first_by_default():
    method = TABLE["plain-sum"]
    assert method.variant(None) == "left" and method.variant("right") == "right"
    with pytest.raises(UnknownNameError, match="variant of plain-sum"):
        method.variant("up")


def test_options_of_other_methods_are_refused_with_their_owners():
    TABLE.require_options("longest", {"key": len})
    TABLE.require_options("plain-sum", {"key": None})
    with pytest.raises(
        DataError, match=r"plain-sum has no option 'key' \(it belongs to longest\); it takes no options"
    ):
        TABLE.require_options("plain-sum", {"key": len})
    with pytest.raises(DataError, match=r"no other method has it\); it takes key"):
        TABLE.require_options("longest", {"speed": 3})


def test_two_methods_cannot_have_one_name():
    with pytest.raises(ValueError, match="already a method of adding named 'longest'"):
        TABLE.add(Method("longest", "peano:89", "again", max))
