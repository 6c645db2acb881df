"""Calls of a module are seen once each, however it is called, and the module is left as it was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from interbasin.wiring.trace.calls import observe_calls
from interbasin.wiring.wire import wire


def untouched(module):
    return "forward" not in vars(module) and not module._forward_hooks and not module._forward_pre_hooks


def test_each_call_is_seen_once_whichever_way_it_is_made():
    layer, entered, left = nn.Linear(2, 3), [], []
    stop = observe_calls(layer, lambda args, kwargs: entered.append((args, kwargs)), left.append)
    x = torch.zeros(4, 2)
    outputs = [layer(x), layer.forward(x), layer(input=x), layer.forward(input=x)]
    stop()
    layer(x), layer.forward(x)
    assert [bool(kwargs) for _, kwargs in entered] == [False, False, True, True]
    assert len(left) == 4 and all(one is other for one, other in zip(left, outputs, strict=True))
    assert untouched(layer)


def test_hooks_of_the_module_come_first():
    layer, seen = nn.Linear(2, 2), []
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.register_forward_hook(lambda module, args, output: output * 0)
    stop = observe_calls(layer, lambda args, kwargs: seen.append(args[0]), seen.append)
    layer(torch.zeros(1, 2))
    stop()
    assert torch.equal(seen[0], torch.ones(1, 2)) and torch.equal(seen[1], torch.zeros(1, 2))


def test_several_observers_end_in_any_order_and_a_forward_of_the_instance_comes_back():
    layer = nn.Linear(2, 2)
    own = layer.forward = lambda x: x + 1
    counts = [0, 0]

    def count(position):
        def leave(output):
            counts[position] += 1

        return leave

    first, second = (observe_calls(layer, leave=count(position)) for position in (0, 1))
    layer.forward(torch.zeros(2)), layer(torch.zeros(2))
    first()
    layer.forward(torch.zeros(2))
    second()
    assert counts == [2, 3] and layer.forward is own


def test_a_call_that_fails_and_calls_in_other_threads_disturb_nothing():
    layer, seen = nn.Linear(2, 3), []
    stop = observe_calls(layer, leave=seen.append)
    with pytest.raises(RuntimeError):
        layer.forward(torch.zeros(4, 5))
    threads = [threading.Thread(target=layer.forward, args=(torch.zeros(1, 2),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop()
    assert len(seen) == 4 and untouched(layer)


class Direct(nn.Module):
    """Calls its layers through their forward."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.three(torch.tanh(self.two.forward(torch.relu(self.one.forward(x)))))


def test_the_wiring_knows_what_goes_through_modules_whose_forward_is_called():
    network = Direct()
    wiring = wire(network, torch.zeros(2, 5))
    assert {"one:output:0", "two:input:0", "two:output:0", "three:input:0"} <= wiring.activations.keys()
    assert all(untouched(module) for module in network.modules())
