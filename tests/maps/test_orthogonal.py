"""What counts as an isometry: the tolerance of each precision, and ranks."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.records import seal_document
from tests.test_storage import refused

from interbasin import maps
from interbasin.errors import FileError, MapError
from interbasin.maps import Orthogonal


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_each_precision_has_its_own_tolerance(dtype):
    turn = torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]], dtype=torch.float64)
    assert Orthogonal(turn.to(dtype)).rank == 2
    refused(lambda: Orthogonal((1.1 * turn).to(dtype)), MapError, (str(dtype),))


def test_partial_isometries_know_their_rank():
    assert Orthogonal([[1.0, 0.0], [0.0, 0.0]]).rank == 1
    assert Orthogonal([[0.0]]).rank == 0
    assert Orthogonal([[-1.0]]).rank == 1
    assert Orthogonal([[1.0, 0.0, 0.0]]).rank == 1
    assert not Orthogonal([[1.0, 0.0, 0.0]]).is_exact_inverse


def test_a_saved_rank_that_is_not_the_matrix_s_is_refused(tmp_path):
    Orthogonal(torch.eye(3)).save(tmp_path / "map")
    path = tmp_path / "map" / "map.json"
    seal_document(path, json.loads(path.read_text("utf-8")) | {"rank": 2})
    with pytest.raises(FileError, match="says it has rank 2, but its matrix has rank 3"):
        maps.load(tmp_path / "map")
