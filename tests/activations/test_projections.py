"""q, k and v inside attention: their derived moments are those of q, k and v computed one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.activations.examples import TOLERANCE, assert_moments, no_hooks, numbers
from tests.profiles import at_most
from torch import nn

from interbasin.activations import Recording, record
from interbasin.activations.pairing import Pairing
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.statistics import PairedMoments
from interbasin.wiring.wire import wire

SIDES = ("q", "k", "v")


class Attending(nn.Module):
    """Attention on the network's input, alone or beside a memory."""

    def __init__(self, kind="self", width=8, heads=2, kdim=None, vdim=None, bias=True, batch_first=True, **extra):
        super().__init__()
        self.kind, self.batch_first = kind, batch_first
        self.embed = nn.Linear(5, width)
        self.key, self.value = nn.Linear(5, kdim or width), nn.Linear(5, vdim or width)
        self.attn = nn.MultiheadAttention(
            width, heads, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first, **extra
        )
        self.head = nn.Linear(width, 3)

    def arguments(self, x, memory):
        query = self.embed(x)
        if self.kind == "self":
            return query, query, query
        if self.kind == "cross":
            other = self.key(memory)
            return query, other, other
        return query, self.key(memory), self.value(memory)

    def forward(self, x, memory):
        if not self.batch_first:
            x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        query, key, value = self.arguments(x, memory)
        seen, _ = self.attn(query, key, value=value, need_weights=False)
        return self.head(seen)


def attending(seed, **options):
    torch.manual_seed(seed)
    net = Attending(**options).double().eval()
    for tensor in net.parameters():
        nn.init.normal_(tensor)  # torch starts the biases of attention at zero
    return net


def explicit(net, data):
    """q, k and v of all batches, one row a token."""
    found = {side: [] for side in SIDES}
    attn = net.attn
    weights = (
        [attn.q_proj_weight, attn.k_proj_weight, attn.v_proj_weight]
        if attn.in_proj_weight is None
        else attn.in_proj_weight.chunk(3)
    )
    biases = [None] * 3 if attn.in_proj_bias is None else attn.in_proj_bias.chunk(3)
    with torch.no_grad():
        for batch in data:
            for side, seen, weight, bias in zip(SIDES, net.arguments(*batch), weights, biases, strict=True):
                found[side].append(F.linear(seen, weight, bias).flatten(0, -2))
    return {side: torch.cat(rows) for side, rows in found.items()}


def batches(count=2, tokens=4):
    return [(numbers(3, tokens, 5, seed=seed) + 1, numbers(3, tokens, 5, seed=seed + 9)) for seed in range(count)]


def assert_all_moments(moments, x, y, grams):
    assert_moments(moments, x, y)
    assert moments.has_grams is grams
    wanted = PairedMoments.of(x, y)
    parts = [(moments.cross(centered=False), wanted.cross(centered=False))]
    if grams:
        for centered in (True, False):
            parts.append((moments.gram_source(centered=centered), wanted.gram_source(centered=centered)))
            parts.append((moments.gram_target(centered=centered), wanted.gram_target(centered=centered)))
    for found, expected in parts:
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE * float(expected.abs().max() + 1))


@st.composite
def attentions(draw):
    kind = draw(st.sampled_from(["self", "cross", "three"]))
    apart = kind != "self" and draw(st.booleans())
    heads = draw(st.integers(1, 3))
    key = draw(st.integers(1, 7))
    return {
        "kind": kind,
        "heads": heads,
        "width": heads * draw(st.integers(1, 4)),
        "kdim": key if apart else None,
        "vdim": (draw(st.integers(1, 7)) if kind == "three" else key) if apart else None,
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
    }


@at_most(20)
@given(attentions(), attentions(), st.booleans())
def test_derived_moments_are_those_of_explicit_projections(source, target, grams):
    models, data = (attending(0, **source), attending(1, **target)), batches()
    pairs = [(f"attn:{x}", f"attn:{y}") for x, y in (("q", "q"), ("k", "k"), ("v", "v"), ("q", "k"), ("v", "q"))]
    found = record(models, data, pairs, grams=grams)
    sides = [explicit(net, data) for net in models]
    for x, y in pairs:
        assert_all_moments(found.moments[x, y], sides[0][x[-1]], sides[1][y[-1]], grams)
        assert found.places[x, y] == (f"{x}:0", f"{y}:0")
    assert no_hooks(*models)


def test_one_network_other_places_and_the_input_itself_without_its_gram_matrix():
    net, data = attending(0), batches()
    pairs = [("attn:q", "attn:v"), ("attn:k", "embed:output"), ("embed:output", "attn:v")]
    found = record(net, data, [*pairs, "embed:output"])
    rows = explicit(net, data) | {"t": torch.cat([net.embed(x).flatten(0, 1) for x, _ in data]).detach()}
    for x, y in [*pairs, ("embed:output", "embed:output")]:
        assert_all_moments(found.moments[x, y], rows[x[-1]], rows[y[-1]], False)


def test_all_layers_at_once():
    models, data = (attending(0, kind="cross"), attending(1, width=12, heads=3)), batches()
    names = ["attn:q", "attn:k", "attn:v", "embed:output"]
    found = record(models, data, names, statistics="layerwise")
    assert list(found.layerwise.sources) == names
    sides = [explicit(net, data) | {"t": torch.cat([net.embed(x).flatten(0, 1) for x, _ in data])} for net in models]
    for x, y in itertools.product(names, names):
        assert_all_moments(found.moments[x, y], sides[0][x[-1]].detach(), sides[1][y[-1]].detach(), True)


def test_arguments_that_are_one_tensor_are_recorded_once(monkeypatch):
    take, seen = Pairing.take, []
    monkeypatch.setattr(Pairing, "take", lambda self, *args: (seen.append(args[1].place), take(self, *args)))
    names = ["attn:q", "attn:k", "attn:v"]
    for kind, count in (("self", 1), ("cross", 2), ("three", 3)):
        seen.clear()
        record(attending(0, kind=kind), batches(1), names)
        assert len(seen) == count


def test_moments_of_masked_pooled_and_interpolated_tokens_are_derived_from_those():
    models, data = (attending(0), attending(1, width=12)), batches(1)
    x, memory = data[0]
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    rows = [explicit(net, data)["k"].unflatten(0, (3, 4)) for net in models]
    found = record(models, data, ["attn:k"], mask=lambda batch: mask).moments["attn:k", "attn:k"]
    assert_all_moments(found, rows[0][mask], rows[1][mask], False)
    found = record(models, data, ["attn:k"], pool="mean", mask=lambda batch: mask).moments["attn:k", "attn:k"]
    means = [torch.stack([one[keep].mean(0) for one, keep in zip(side, mask, strict=True)]) for side in rows]
    assert_all_moments(found, *means, False)
    short = (x[:, :2], memory[:, :2])
    found = record(models, [(short, (x, memory))], ["attn:q"], tokens="interpolate", own_inputs=True)
    few, many = explicit(models[0], [short])["q"], explicit(models[1], data)["q"]
    fine = F.interpolate(few.unflatten(0, (3, 2)).mT, size=4, mode="linear", align_corners=False).mT
    assert_all_moments(found.moments["attn:q", "attn:q"], fine.flatten(0, 1), many, False)


def test_spaces_inside_attention_are_recorded_by_their_names():
    for options in ({}, {"kind": "three", "kdim": 3, "vdim": 6}):
        models, data = [attending(0, **options), attending(1, width=12, heads=3, **options)], batches()
        wirings = [wire(net, data[0]) for net in models]
        for side in ("q", "v"):
            axis = f"attn.{side}_proj_weight[0]" if options else "attn.in_proj_weight[0]"
            inner = [space for space in wirings[0].spaces.values() if space.within and axis in space.writes]
            name = (inner[-1] if side == "v" else inner[0]).name
            found = record(models, data, [name], wirings=wirings)
            assert found.places[name, name] == (f"attn:{side}:0",) * 2
            sides = [explicit(net, data)[side] for net in models]
            assert_all_moments(found.moments[name, name], *sides, False)
            placed = record(models, data, {name: f"attn:{side}"}, wirings=wirings)
            assert torch.equal(placed.moments[name, name].cross(), found.moments[name, name].cross())


def test_attention_inside_a_transformer_of_torch_with_a_padding_mask():
    torch.manual_seed(0)
    models = [
        nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 12, batch_first=True), 2).double().eval()
        for width in (6, 6)
    ]
    x = numbers(3, 4, 6)
    padding = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
    batch = {"src": x, "src_key_padding_mask": padding}
    name = "layers.0.self_attn:v"
    found = record(models, [batch], [name], mask=lambda batch: ~batch["src_key_padding_mask"]).moments[name, name]
    sides = []
    for net in models:
        attn = net.layers[0].self_attn
        sides.append(F.linear(x[~padding], attn.in_proj_weight.chunk(3)[2], attn.in_proj_bias.chunk(3)[2]).detach())
    assert_all_moments(found, *sides, False)


def test_a_recording_of_them_is_saved_and_resumed(tmp_path):
    models, data = (attending(0), attending(1, width=12)), batches(4)
    names = ["attn:q", "attn:v"]
    whole = record(models, data, names)

    def stop(done):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(models, data, names, state=tmp_path / "state", every=1, progress=stop)
    resumed = record(models, data, names, state=tmp_path / "state")
    resumed.save(tmp_path / "recording")
    again = Recording.load(tmp_path / "recording")
    for name in names:
        wanted = whole.moments[name, name].cross()
        assert torch.equal(resumed.moments[name, name].cross(), wanted)
        assert torch.equal(again.moments[name, name].cross(), wanted)


def test_weights_that_an_adapter_puts_in_for_the_call_are_those_that_count():
    net, data = attending(0), batches(1)
    merged = net.attn.in_proj_weight.detach() * 2

    class Adapted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args, **kwargs):
            kept = self.inner.in_proj_weight
            del self.inner.in_proj_weight
            self.inner.in_proj_weight = merged
            try:
                return self.inner(*args, **kwargs)
            finally:
                del self.inner.in_proj_weight
                self.inner.in_proj_weight = kept

    attn, net.attn = net.attn, Adapted(net.attn)
    found = record(net, data, ["attn.inner:q"]).moments["attn.inner:q", "attn.inner:q"]
    net.attn, attn.in_proj_weight = attn, nn.Parameter(merged)
    q = explicit(net, data)["q"]
    assert_all_moments(found, q, q, False)


class Changing(Attending):
    """Attends to itself where there is no memory."""

    def forward(self, x, memory=None):
        query = self.embed(x)
        other = query if memory is None else self.key(memory)
        return self.head(self.attn(query, other, other)[0])


def test_what_cannot_be_derived_is_refused():
    net, data = attending(0), batches(1)
    with pytest.raises(WiringError, match=r"record head:q:0, but q, k and v are known inside .* 'head' is a Linear"):
        record(net, data, ["head:q"])
    with pytest.raises(ShapeError, match=r"'embed' is 8 wide, and wide\.attn:q:0 is 12 wide"):
        net.wide = nn.ModuleDict({"attn": nn.MultiheadAttention(12, 2)})
        record(net, data, {"embed": "wide.attn:q"})
    with pytest.raises(WiringError, match="names no place"):
        record(net, data, ["attn:q[1]"])
    with pytest.raises(DataError, match="no batch at all"):
        record(net, [], ["attn:q"])
    torch.manual_seed(0)
    changing = Changing().double().eval()
    mixed = [{"x": data[0][0]}, {"x": data[0][0], "memory": data[0][1]}]
    with pytest.raises(WiringError, match=r"In batch 1: In the first batch 'k' of attn was made from the same tensor"):
        record(changing, mixed, ["attn:q", "attn:k"])
    with pytest.raises(DataError, match=r"Attending \(target\) was called with"):
        record((net, attending(1)), [(data[0], (torch.zeros(1), data[0][1]))], ["attn:q"], own_inputs=True)
