"""The law of wiring, on random networks: whatever the network, the maps that are found leave its function unchanged.

`random_networks` draws the networks. How many are drawn is set so that the file takes about a minute; for a longer
hunt run it with INTERBASIN_PROFILE=search and INTERBASIN_EXAMPLES=2000.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.profiles import at_most
from tests.wiring.programs import Program
from tests.wiring.random_networks import network

from interbasin.wiring import Wiring, carry, wire

# Networks of a dozen steps with values of order one, in float64: round-off stays far below this, a wrong map far above.
EXACT = 1e-9
# Wiring takes about a tenth of a second. Structures that double with every step would not end at all.
SECONDS = 20


@st.composite
def networks(draw: st.DrawFn, steps: int = 12) -> Program:
    return network(lambda count: draw(st.integers(0, count - 1)), draw(st.integers(1, steps)))


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"wiring took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wired(program: Program) -> Wiring:
    with time_limit():
        return wire(program, program.example)


def depends_on_its_weights(program: Program) -> bool:
    """Whether the output is a number, and another one with other weights: not all units are dead."""
    with torch.no_grad():
        before, after = program(*program.example), program.again(seed=1)(*program.example)
    return bool(torch.isfinite(before).all()) and not torch.allclose(before, after, rtol=1e-6)


@at_most(40)
@given(networks())
def test_every_map_that_is_found_leaves_the_function_unchanged(program: Program) -> None:
    assume(depends_on_its_weights(program))
    wiring = wired(program)
    for seed in range(3):
        assert wiring.check(program, program.example, seed=seed) < EXACT


@pytest.mark.slow
@at_most(20)
@given(networks(), st.integers(0, 1000))
def test_the_way_back_gives_the_weights_back(program: Program, seed: int) -> None:
    alignment = wired(program).sample(seed)
    assert alignment.is_exact
    there_and_back = carry(carry(program, alignment), alignment.inverse()).state_dict()
    for name, tensor in program.state_dict().items():
        torch.testing.assert_close(there_and_back[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@at_most(20)
@given(networks())
def test_a_wiring_is_told_in_json_and_read_again(program: Program) -> None:
    wiring = wired(program)
    again = Wiring.from_json(json.loads(json.dumps(wiring.to_json())))
    assert again == wiring
    assert str(again) == str(wiring)


@pytest.mark.slow
@at_most(13)
@given(networks())
def test_the_values_of_the_weights_say_nothing(program: Program) -> None:
    assert wired(program) == wired(program.again(seed=5))
