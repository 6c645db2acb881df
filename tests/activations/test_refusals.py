"""Every message of recording, and what it leaves behind: no hooks, no threads."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.activations.examples import cnn, llama, mlp, no_hooks, numbers, texts, vit
from torch import nn

from interbasin.activations import Tokens, record
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.wiring.wire import wire


@pytest.fixture
def pair():
    models = mlp(0), mlp(1)
    threads = threading.active_count()
    yield models
    assert no_hooks(*models)
    assert threading.active_count() == threads


def refused(error, match, *args, **options):
    with pytest.raises(error, match=match):
        record(*args, **options)


def test_no_data(pair):
    for data in ([], torch.empty(0, 5), iter(())):
        refused(DataError, "hold no batch at all", pair, data, ["0:output"])
    refused(DataError, "hold no batch at all", pair, [], ["0"])


def test_data_that_are_no_batches(pair):
    refused(DataError, "found one dict; put a single batch into a list", pair, {"x": numbers(2, 5)}, ["0:output"])
    refused(DataError, "found one int", pair, 3, ["0:output"])
    refused(DataError, "Batch 1 is a int; give a tensor", pair, [numbers(2, 5), 3], ["0:output"])
    refused(DataError, "cannot be cut into batches of 0", pair, numbers(2, 5), ["0:output"], batch_size=0)
    refused(DataError, "pair of inputs and labels, found a Tensor", pair, [numbers(2, 5)], ["0:output"], labelled=True)
    refused(DataError, "found 3 parts", pair, [(1, 2, 3)], ["0:output"], own_inputs=True)


def test_activations_that_are_not_numbers_name_the_batch_and_the_space(pair):
    data = [numbers(4, 5), numbers(4, 5, seed=1)]
    data[1][2, 3] = torch.nan
    refused(
        DataError,
        r"In batch 1: recording '0:output' \(source\) with '2:output' \(target\):.*NaN or infinity",
        pair,
        data,
        [("0:output", "2:output")],
    )
    refused(DataError, "In batch 1: recording '0'.*holds NaN", pair[0], data, ["0"])
    refused(
        DataError,
        "In batch 1: recording all layers:.*layer '0:output' holds NaN",
        pair,
        data,
        ["0:output"],
        statistics="layerwise",
    )


def test_unknown_names_come_with_the_nearest(pair):
    data = [numbers(4, 5)]
    refused(UnknownNameError, "no space named 'fc'; try one of", pair, data, ["fc"])
    refused(UnknownNameError, "no module of Sequential named '9'; try one of", pair, data, ["9:input"])
    refused(UnknownNameError, "has a module but no space named '1'; ask for '1:output'", pair, data, ["1"])
    refused(UnknownNameError, "no kind of statistics named 'cka'", pair, data, ["0"], statistics="cka")
    refused(UnknownNameError, "no way to pool named 'max'", pair, data, ["0"], pool="max")
    refused(UnknownNameError, "no token mode named 'crop'", pair, data, ["0"], tokens="crop")


def test_requests_that_are_none(pair):
    data = [numbers(4, 5)]
    refused(
        WiringError,
        "a list of names, a list of pairs.*found '0:output'; put a single name into a list",
        pair,
        data,
        "0:output",
    )
    refused(WiringError, "found 'int'", pair, data, 3)
    refused(
        WiringError,
        r"a name or a pair of names \(source, target\), found \('a', 'b', 'c'\)",
        pair,
        data,
        [("a", "b", "c")],
    )
    refused(WiringError, "name of a space is text, found 3", pair, data, [("0:output", 3)])
    refused(DataError, "no spaces at all", pair, data, [])
    refused(DataError, "no layers at all", pair, data, [], statistics="layerwise")
    refused(WiringError, "one or two torch.nn.Modules", (*pair, pair[0]), data, ["0:output"])
    refused(WiringError, r"a network \(Sequential\) in place of data; give a pair", *pair, data)
    refused(WiringError, "Asked to record a str", ("a", "b"), data, ["0:output"])
    refused(WiringError, "needs as many wirings, found 1", pair, data, ["0"], wirings=wire(pair[0], data[0]))


def test_networks_that_answer_other_numbers_of_tokens():
    models = vit(0), vit(1, patch=4)
    data = [numbers(2, 3, 32, 32)]
    refused(
        ShapeError,
        r"In batch 0: recording 'norm:.*rows of shapes \(2, 17\) and \(2, 65\) do not pair.*tokens='interpolate2d'",
        models,
        data,
        ["norm:input"],
    )
    refused(ShapeError, "do not pair", models, data, ["norm:input"], statistics="layerwise")
    assert no_hooks(*models)


def test_networks_that_answer_other_numbers_of_inputs(pair):
    data = [(numbers(4, 5), numbers(3, 5))]
    refused(ShapeError, "do not pair", pair, data, ["0:output"], own_inputs=True)
    refused(ShapeError, "not of the same number of inputs", pair, data, ["0:output"], own_inputs=True, tokens="mean")


def test_masks_that_do_not_fit_or_leave_nothing():
    net, data = llama(), texts(1)
    refused(
        ShapeError,
        r"does not fit what is seen at 'model.norm': rows of shape \(4, 7\), found mask \(4, 6\)",
        net,
        data,
        ["model.norm:input"],
        mask=lambda batch: torch.ones(4, 6),
    )
    refused(
        DataError, "No row was left to record", net, data, ["model.norm:input"], mask=lambda batch: torch.zeros(4, 7)
    )
    refused(
        ShapeError,
        "masks leave .* not the same number for each input",
        (net, llama(1)),
        [tuple(texts(1) + texts(1, seed=5))],
        ["model.norm:input"],
        own_inputs=True,
    )
    assert no_hooks(net)


def test_padding_is_not_interpolated():
    long, short = texts(1, length=9), texts(1)
    refused(
        DataError,
        "would mix padding into what counts",
        (llama(0), llama(1)),
        [(long[0], short[0])],
        ["model.norm:input"],
        own_inputs=True,
        tokens="interpolate",
    )
    refused(
        DataError,
        "the batch says nothing of them; give mappings with 'offset_mapping'",
        (llama(0), llama(1)),
        short,
        ["model.norm:input"],
        tokens="offsets",
    )


def test_inputs_that_are_all_padding_are_left_out():
    net, data = llama(), texts(1)
    data[0]["attention_mask"][1] = 0
    assert record(net, data, ["model.norm:input"], pool="mean").count == 3


def test_pooling_needs_inputs_on_the_first_axis():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 4)

        def forward(self, x):
            return self.fc(x.flatten(0, 1))

    refused(
        ShapeError,
        r"rows have shape \(6,\) for 2 inputs; record a place",
        Flat().double(),
        [numbers(2, 3, 5)],
        ["fc:output"],
        pool="mean",
    )


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.Dropout1d(0.1), nn.BatchNorm1d(5), nn.MultiheadAttention(5, 1, dropout=0.3)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_network_that_is_being_trained(layer):
    net = nn.Sequential(layer, nn.Linear(5, 2)).train()
    refused(
        WiringError, "is in training mode and '0' is random there.*call model.eval", net, [numbers(4, 5)], ["1:output"]
    )


def test_training_mode_without_anything_random_is_fine(pair):
    record(nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 2)).double().train(), [numbers(4, 5)], ["1:output"])
    record([model.train() for model in pair], [numbers(4, 5)], ["0:output"])


def test_places_that_are_not_come_by(pair):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle, self.ids = nn.Linear(5, 3).double(), nn.Linear(5, 3), nn.Identity()

        def forward(self, x):
            self.ids(torch.arange(3))
            return self.used(x)

    net = Idle()
    data = [numbers(4, 5)]
    refused(
        WiringError,
        "idle:output:0 of Idle, but in this forward pass that module was not called",
        net,
        data,
        ["idle:output"],
    )
    refused(WiringError, r"used:output:1 of Idle.*called 1 time\(s\)", net, data, ["used:output:1"])
    refused(WiringError, "no floating-point tensor passes there", net, data, ["ids:output"])
    # Of two networks, the one that is not come by may be either.
    refused(WiringError, "was not called", (net, pair[0]), data, [("idle:output", "0:output")])
    refused(WiringError, "was not called", (pair[0], net), data, [("0:output", "idle:output")])
    assert no_hooks(net)


@pytest.mark.parametrize("broken", [0, 1])
def test_networks_that_fail_leave_nothing_behind(pair, broken):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.other = nn.Linear(5, 3).double(), nn.Linear(3, 3).double()

        def forward(self, x):
            self.other(self.fc(x))
            raise RuntimeError("on purpose")

    models = [pair[0], pair[0]]
    models[broken] = Broken()
    role = ("source", "target")[broken]
    words = (
        rf"In batch 0: Broken \({role}\) was called with \(4, 5\) torch.float64 and failed \(RuntimeError: on purpose"
    )
    with pytest.raises(DataError, match=words) as caught:
        record(models, [numbers(4, 5)], [("0:output", "fc:output") if broken else ("fc:output", "0:output")])
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)
    assert no_hooks(*models)


def test_a_lack_of_memory_is_no_fault_of_the_batch(pair):
    class Large(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        record(Large(5, 3), [numbers(4, 5)], [":output"])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3).double()

    def forward(self, x, scale=1.0):
        return self.fc(x) * scale


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (numbers(4, 6), r"called with \(4, 6\) torch.float64 and failed \(RuntimeError: .*give batches as its forward"),
        (numbers(4, 5).float(), r"\(4, 5\) torch.float32 and failed \(RuntimeError"),
        (torch.tensor(1.0).double(), r"called with \(\) torch.float64 and failed \(RuntimeError"),
        ({"y": numbers(4, 5)}, r"called with y=\(4, 5\) torch.float64 and failed \(TypeError: .*argument 'y'\)"),
        ({}, r"called with nothing and failed \(TypeError"),
        ((numbers(4, 5), 1, 2, 3, 4, 5, 6, 7), r"int, int, int, int, int, \.\.\. and failed"),
    ],
    ids=["width", "dtype", "no axes", "keyword", "nothing", "too many"],
)
@pytest.mark.parametrize("name", ["fc:output", "output"])
def test_a_later_batch_that_the_network_does_not_take_is_named(batch, words, name):
    net = Scaled()
    spaces = [name] if ":" in name else {name: "fc:output"}
    refused(
        DataError,
        f"In batch 1: Scaled was {words}" if "called" in words else words,
        net,
        [numbers(4, 5), batch],
        spaces,
    )
    assert no_hooks(net)


def test_labels_that_were_not_spoken_of():
    labelled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(numbers(8, 5), torch.arange(8)), batch_size=4)
    words = r"If a batch is a pair \(inputs, labels\), pass labelled=True\."
    for spaces in (["0:output"], ["0"]):
        refused((DataError, WiringError), words, mlp(), labelled, spaces)
        refused((DataError, WiringError), "or.*own_inputs=True", (mlp(0), mlp(1)), labelled, spaces)
        assert record(mlp(), labelled, spaces, labelled=True).count == 8


def test_wirings_of_other_networks(pair):
    other = mlp(2, 9)
    data = [numbers(4, 5)]
    wirings = wire(pair[0], data[0]), wire(other, data[0])
    words = (
        r"network 0 \(source\) is not one of this Sequential: it knows '0.weight' in shape \(9, 5\), and the network"
    )
    refused(WiringError, words + ".*are the two swapped", (pair[0], other), data, ["0"], wirings=wirings[::-1])
    refused(WiringError, "network 0 is not one.*find it with", other, data, ["0"], wirings=wirings[0])
    refused(WiringError, "tensor '0.weight', which the network does not", Scaled(), data, ["0"], wirings=wirings[0])
    for given in (True, "wiring", pair[0], [1]):
        refused(WiringError, "wirings must be one Wiring per network", pair[0], data, ["0"], wirings=given)


@pytest.mark.parametrize("device", ["nonsense", 3.5, "mps" if not torch.backends.mps.is_available() else "vulkan"])
def test_devices_that_are_not_there(device, pair):
    refused(DataError, f"device {device!r}, which torch cannot use", pair, [numbers(4, 5)], ["0"], device=device)


def test_the_device_without_numbers(pair):
    refused(DataError, "'meta' hold no numbers", pair, [numbers(4, 5)], ["0"], device="meta")


def test_options_of_another_kind(pair):
    data = [numbers(4, 5)]
    for size in (None, "3", 2.5, True):
        refused(DataError, f"cut into batches of {size!r}", pair, data[0], ["0"], batch_size=size)
    refused(DataError, "found an array.*torch.from_numpy", pair, data[0].numpy(), ["0"])
    refused(WiringError, "at='post' or at='pre', found 'mid'", pair, data, ["0:output"], at="mid")
    refused(DataError, "found a int; masks differ from batch to batch", pair, data, ["0"], mask=3)
    refused(DataError, "found a Tensor; masks differ", pair, data, ["0"], mask=torch.ones(4, 5))
    refused(UnknownNameError, "no token mode named 3", pair, data, ["0"], tokens=3)
    refused(WiringError, "found 'NoneType'", pair, data, [None, None], statistics="layerwise")
    refused(DataError, "all batches are empty, or their masks leave nothing", pair, [numbers(0, 5)], ["0:output"])
    refused(WiringError, "hold an empty tensor", pair, [numbers(0, 5)], ["0"])


def test_offsets_that_are_no_numbers():
    batch = texts(1)[0] | {"offset_mapping": [[(0, 1)], [(0, 1), (1, 2)]]}
    refused(DataError, r"In batch 0: offset_mapping should be numbers", llama(), [batch], ["model.norm:input"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefix": 3}, "prefix must be two numbers of tokens"),
        ({"prefix": (1, -1)}, r"prefix must be two numbers .* found \(1, -1\)"),
        ({"grid": (3, 3)}, r"grid must be two sizes, .* found \(3, 3\)"),
        ({"grid": ((3, 3), (2,))}, "grid must be two sizes"),
    ],
)
def test_tokens_that_are_none(options, words):
    with pytest.raises(DataError, match=words):
        Tokens("interpolate2d", **options)


def test_activations_of_another_kind_than_the_first_batch():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    refused(
        ShapeError,
        "was found at 2:input:0 in an activation of 2 axes, and now it has 3",
        net,
        [numbers(2, 5), numbers(2, 3, 5)],
        ["0"],
    )


def test_rows_of_layers_have_to_agree():
    refused(ShapeError, "do not pair", cnn(), [numbers(2, 3, 8, 8)], ["0:output", "4:output"], statistics="layerwise")
