"""Models in three parts, and embedders for what they never saw."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.jobs.adapt.examples import QUICK, one_recalibration  # noqa: F401  (a fixture)
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.adapt import Source, load_adapted
from interbasin.jobs.adapt.embedders import make_embedder, smallest_divisor

pytestmark = pytest.mark.slow


def timm_model(name: str, **options: Any) -> nn.Module:
    model: nn.Module = import_extra("timm", "This test", "timm").create_model(name, num_classes=5, **options)
    return model.eval()


VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12, 16], "depths": [1, 1, 1], "layer_type": "basic"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ViT": {**VIT, "patch_size": 8},
    "DeiT": {**VIT, "patch_size": 8},
    "Swin": SWIN,
    "Swinv2": SWIN,
    "ResNet": RESNET,
}


def image_model(kind: str, suffix: str = "ForImageClassification", **options: Any) -> nn.Module:
    """A small one of transformers, whose biases and positions do not begin at zero."""
    transformers = import_extra("transformers", "This test", "hf")
    config = getattr(transformers, f"{kind}Config")(**{**CONFIGURATIONS[kind], **options}, num_labels=5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = getattr(transformers, f"{kind}{suffix}")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def bert_of_transformers(kind: str, **options: Any) -> nn.Module:
    transformers = import_extra("transformers", "This test", "hf")
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99, **options
    )
    model: nn.Module = getattr(transformers, f"{kind}Model")(config)
    return model.eval()


SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "timm ViT": lambda: timm_model("vit_tiny_patch16_224", **SMALL_VIT),
    "timm ViT, mean": lambda: timm_model("vit_tiny_patch16_224", **SMALL_VIT, global_pool="avg"),
    "timm Swin": lambda: timm_model(
        "swin_tiny_patch4_window7_224", img_size=32, embed_dim=16, depths=(1, 1), num_heads=(1, 2), window_size=4
    ),
    "timm ResNet": lambda: timm_model("resnet18"),
    **{f"transformers {kind}": partial(image_model, kind) for kind in CONFIGURATIONS},
    "transformers Swin, positions": lambda: image_model("Swin", use_absolute_embeddings=True),
}


@pytest.mark.parametrize("family", IMAGES)
@torch.no_grad()
def test_the_parts_of_a_family_compute_what_the_model_does(family):
    model = IMAGES[family]()
    source, inputs = Source.of(model).with_layout(torch.randn(2, 3, 32, 32)), torch.randn(3, 3, 32, 32)
    expected = model(inputs)
    expected = getattr(expected, "logits", expected)
    torch.testing.assert_close(source.head(source.features(inputs)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(source.copy().features(inputs), source.features(inputs))


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@torch.no_grad()
def test_features_are_the_models_own_pooled_output(kind):
    model, images = image_model(kind, "Model"), torch.randn(3, 3, 32, 32)
    source, outputs = Source.of(model), model(images)
    # Transformers' pooler of a ViT is a layer more, which heads of classes do not read.
    is_vit = kind in ("ViT", "DeiT")
    expected = outputs.last_hidden_state[:, 0] if is_vit else outputs.pooler_output.flatten(1)
    torch.testing.assert_close(source.features(images), expected, rtol=1e-4, atol=1e-5)
    assert source.head is None and source.fittings.patch is not None
    if is_vit:
        assert source.prefix_length == (2 if kind == "DeiT" else 1)


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@torch.no_grad()
def test_encoders_of_text_have_the_mean_of_their_states_for_features(kind):
    model = bert_of_transformers(kind)
    source, tokens = Source.of(model), torch.randint(5, 99, (3, 7))
    expected = model(input_ids=tokens).last_hidden_state.mean(1)
    torch.testing.assert_close(source.features(tokens), expected, rtol=1e-4, atol=1e-5)
    assert source.head is None


@pytest.mark.parametrize(
    ("kind", "attention"), [("Bert", "sdpa"), ("Bert", "eager"), ("Roberta", "sdpa"), ("DebertaV2", "eager")]
)
@torch.no_grad()
def test_padding_has_no_part_in_the_features_of_text(kind, attention):
    model = bert_of_transformers(kind, attn_implementation=attention)
    tokens, mask = torch.randint(5, 99, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    tokens[1, 4:] = model.config.pad_token_id
    batch = {"input_ids": tokens, "attention_mask": mask}
    states = model(**batch).last_hidden_state
    expected = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    source = Source.of(model)
    torch.testing.assert_close(source.features(batch), expected, rtol=1e-4, atol=1e-5)
    # A text is the same however far the batch is padded; without a mask padding counts.
    alone = source.features({"input_ids": tokens[1:2, :4], "attention_mask": mask[1:2, :4]})
    torch.testing.assert_close(alone[0], expected[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(source.features(tokens)[1], expected[1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_sequence_is_divided_behind_its_first_layer():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3))
    source, inputs = Source.of(model), torch.randn(4, 6)
    torch.testing.assert_close(source.head(source.features(inputs)), model(inputs))
    assert len(source.embedder) == 2 and source.with_layout(inputs).layout == "vectors"


def test_what_cannot_be_divided_says_how_to_do_it_by_hand():
    with pytest.raises(WiringError, match=r"Source\(embedder, body, head\)"):
        Source.of(nn.Linear(2, 2))
    with pytest.raises(DataError, match=r"body of a source is a torch\.nn\.Module, found str"):
        Source(nn.Linear(2, 2), "body")
    with pytest.raises(UnknownNameError, match="mean"):
        Source(nn.Linear(2, 2), nn.Linear(2, 2), pool="max")


@pytest.mark.parametrize("kind", ["Swin", "ResNet"])
def test_a_part_of_a_model_of_transformers_cannot_be_divided(kind):
    with pytest.raises(WiringError, match=r"Source\(embedder, body, head\)"):
        part = image_model(kind, "Model").encoder
        part.config = image_model(kind).config
        Source.of(part)


@pytest.mark.parametrize("shape", [(12,), (1, 96), (3, 40), (1, 16, 16), (4, 24, 16)])
@pytest.mark.parametrize("family", [*IMAGES, "Bert", "a sequence"])
def test_an_embedder_of_any_shape_feeds_any_body(family, shape):
    inputs: Any = torch.randn(2, 3, 32, 32)
    if family == "Bert":
        source, inputs = Source.of(bert_of_transformers("Bert")), torch.randint(5, 99, (2, 7))
    elif family == "a sequence":
        source = Source.of(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)))
        inputs = torch.randn(2, 6)
    else:
        source = Source.of(IMAGES[family]())
    source = source.with_layout(inputs)
    with torch.no_grad():
        body_inputs = source.embed(inputs)
    embedder = make_embedder(source, body_inputs, shape, seed=3)
    features = source.pool_states(source.states(embedder(torch.randn(5, *shape))))
    with torch.no_grad():
        assert features.shape == (5, source.features(inputs).shape[1]) and bool(features.isfinite().all())
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in embedder.parameters() if parameter.requires_grad)
    again = make_embedder(source, body_inputs, shape, seed=3)
    assert all(torch.equal(*pair) for pair in zip(embedder.parameters(), again.parameters(), strict=True))


def test_tokens_are_cut_as_coarsely_as_the_body_needs():
    assert [smallest_divisor(96, most) for most in (96, 48, 20, 16, 5, 1)] == [1, 2, 6, 6, 24, 96]
    assert smallest_divisor(97, 96) == 97


@torch.no_grad()
def test_an_image_of_the_sources_own_shape_is_taken_in_as_the_source_does():
    model = timm_model("vit_tiny_patch16_224", **SMALL_VIT, in_chans=1)
    source, inputs = Source.of(model), torch.randn(2, 1, 32, 32)
    embedder = make_embedder(source, source.embed(inputs), (1, 32, 32))
    torch.testing.assert_close(embedder(inputs), source.embed(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18d", "resnet26t", "resnet10t"])
def test_a_residual_network_with_a_deep_stem_takes_fields(name):
    model, inputs = timm_model(name), torch.randn(2, 3, 32, 32)
    source = Source.of(model)
    with torch.no_grad():
        torch.testing.assert_close(source.head(source.features(inputs)), model(inputs), rtol=1e-4, atol=1e-5)
        body_inputs, width = source.embed(inputs), source.features(inputs).shape[1]
    assert isinstance(source.fittings.patch, nn.Conv2d)  # the first of the stem
    embedder = make_embedder(source, body_inputs, (1, 8, 8))
    assert source.pool_states(source.states(embedder(torch.randn(4, 1, 8, 8)))).shape == (4, width)


@pytest.mark.usefixtures("one_recalibration")
@pytest.mark.parametrize("kind", ["Swin", "ResNet", "DeiT"])
def test_an_image_model_of_transformers_is_adapted_saved_and_loaded(kind, tmp_path):
    model, labels = image_model(kind), torch.arange(24) % 2
    proxy, fields = torch.randn(20, 3, 32, 32), torch.randn(24, 1, 8, 8)
    result = ib.adapt(model, (proxy, torch.arange(20) % 5), (fields, labels), method="naive", **QUICK)
    assert {row.method for row in result.table} >= {"naive", "scratch"}
    result.save(tmp_path / "adapted")
    again = load_adapted(tmp_path / "adapted", model)
    assert torch.equal(again(fields), result.model(fields))


def test_inputs_of_too_many_axes_are_refused():
    source = Source.of(timm_model("vit_tiny_patch16_224", **SMALL_VIT))
    with pytest.raises(ShapeError, match=r"\(2, 3, 4, 5\)"):
        make_embedder(source, torch.zeros(1, 17, 32), (2, 3, 4, 5))
