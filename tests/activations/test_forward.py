"""Forward passes: what hooks alone would not see, and passes that run step by step."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.activations.examples import assert_moments, by_hand, no_hooks, numbers, rows_of
from torch import nn

from interbasin.activations import record
from interbasin.activations.forward import SteppedForward, without_fast_path
from interbasin.errors import DataError, WiringError
from interbasin.wiring.wire import wire


class Encoder(nn.Module):
    """A transformer of torch with a padding mask."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.embed = nn.Linear(5, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 3)

    def forward(self, x, padding):
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=padding))


def encoder(seed, width):
    torch.manual_seed(seed)
    return Encoder(width).double().eval()


def padded(batches=2):
    data = []
    for seed in range(batches):
        lengths = torch.tensor([7, 5, 3, 6])
        data.append({"x": numbers(4, 7, 5, seed=seed), "padding": torch.arange(7) >= lengths[:, None]})
    return data


def seen_slowly(model, data, module, side):
    """Rows that count at a module, with the fast path switched off by hand."""
    rows, before = [], torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        hook = (
            (lambda module, args: rows.append(args[0]))
            if side == "input"
            else (lambda module, args, output: rows.append(output))
        )
        where = model.get_submodule(module)
        handle = where.register_forward_pre_hook(hook) if side == "input" else where.register_forward_hook(hook)
        with torch.no_grad():
            for batch in data:
                model(**batch)
        handle.remove()
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return torch.cat([seen[~batch["padding"]] for seen, batch in zip(rows, data, strict=True)])


@pytest.mark.filterwarnings("error")
def test_a_transformer_encoder_with_a_padding_mask_is_recorded_in_a_pair_of_other_widths(capfd):
    models, data = (encoder(0, 16), encoder(1, 24)), padded()
    names = ["embed", "encoder.layers.1.linear1", "encoder.layers.0:output", "head:input", "embed:output"]
    found = record(models, data, names, mask=lambda batch: ~batch["padding"])
    for name in names:
        module, side, _ = found.places[name, name][0].split(":")
        assert_moments(found.moments[name, name], *(seen_slowly(model, data, module, side) for model in models))
    assert torch.backends.mha.get_fastpath_enabled()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("before", [True, False])
def test_the_fast_path_is_as_it_was_also_after_an_error(before):
    torch.backends.mha.set_fastpath_enabled(before)
    try:
        bad = [{**padded(1)[0], "x": torch.zeros(4, 7, 9).double()}]
        with pytest.raises(DataError, match="failed"):
            record(encoder(0, 16), bad, ["head:input"], mask=False)
        assert torch.backends.mha.get_fastpath_enabled() is before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_of_recordings_in_several_threads_the_last_switches_it_on_again():
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with without_fast_path():
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=other)
    with without_fast_path():
        thread.start()
        inside.wait()
    assert not torch.backends.mha.get_fastpath_enabled()
    go_on.set()
    thread.join()
    assert torch.backends.mha.get_fastpath_enabled()


class Direct(nn.Module):
    """Calls its layers through their forward, one of them twice."""

    def __init__(self, hidden):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, hidden), nn.Linear(hidden, 6), nn.Linear(6, 2)
        self.act = nn.Tanh()

    def forward(self, x):
        return self.three(self.act.forward(self.two.forward(self.act(self.one.forward(x)))))


def direct(seed, hidden):
    torch.manual_seed(seed)
    return Direct(hidden).double()


def test_modules_that_are_called_through_their_forward_are_recorded_by_space_and_by_place():
    models, data = (direct(0, 8), direct(1, 9)), [numbers(7, 5), numbers(4, 5, seed=1)]
    found = record(models, data, ["one", "two", "two:output", "act:output:1"])
    assert found.places["one", "one"] == ("two:input:0", "two:input:0")
    for name, rows in (
        ("one", lambda net, x: torch.tanh(net.one(x))),
        ("two", lambda net, x: torch.tanh(net.two(torch.tanh(net.one(x))))),
        ("two:output", lambda net, x: net.two(torch.tanh(net.one(x)))),
        ("act:output:1", lambda net, x: torch.tanh(net.two(torch.tanh(net.one(x))))),
    ):
        with torch.no_grad():
            sides = [rows_of([rows(net, x) for x in data]) for net in models]
        assert_moments(found.moments[name, name], *sides)
    assert no_hooks(*models)


def test_a_network_whose_modules_are_called_through_their_forward_is_left_as_it_was_after_an_error():
    models = direct(0, 8), direct(1, 9)
    own = models[0].two.forward = models[0].two.forward
    with pytest.raises(DataError, match="In batch 1"):
        record(models, [numbers(7, 5), numbers(7, 6)], ["one"])
    assert models[0].two.forward is own
    del models[0].two.forward
    assert no_hooks(*models)
    with pytest.raises(WiringError, match=r"two:output:1 of Direct.*called 1 time\(s\)"):
        record(models[0], [numbers(7, 5)], ["two:output:1"])
    assert no_hooks(*models)


def test_both_ways_to_call_the_same_module_are_counted_together():
    net, data = direct(0, 8), [numbers(7, 5)]
    assert "act:output:0" not in wire(net, data[0]).activations  # it holds no tensor
    x = rows_of(by_hand(net, data, "act"))
    assert_moments(record(net, data, ["act:output:0"]).moments["act:output:0", "act:output:0"], x, x)


# ---------------------------------------------------------------------- step by step


def test_it_runs_only_as_far_as_it_is_asked_to():
    done = []

    def run():
        for step in range(5):
            done.append(step)
            forward.rest()

    with SteppedForward(run) as forward:
        assert done == []
        forward.until(lambda: 1 in done)
        assert done == [0, 1]
        forward.until(lambda: 0 in done)
        assert done == [0, 1]
        forward.until(lambda: False)
        assert done == [0, 1, 2, 3, 4]


def test_what_it_raises_is_raised_where_it_is_waited_for():
    def run():
        forward.rest()
        raise LookupError("lost")

    with SteppedForward(run) as forward:
        forward.until(lambda: True)
        with pytest.raises(LookupError, match="lost"):
            forward.until(lambda: False)


def test_it_ends_when_nobody_waits_for_it_any_more():
    cleaned = []

    def run():
        try:
            while True:
                forward.rest()
        finally:
            cleaned.append(True)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), SteppedForward(run) as forward:
        rounds = iter(range(3))
        forward.until(lambda: next(rounds, None) is None)
        raise KeyboardInterrupt
    assert cleaned == [True]
    assert threading.active_count() == before


def test_it_need_not_run_at_all():
    done = []
    with SteppedForward(lambda: done.append(True)):
        pass
    assert done == []
