"""A pre-trained model in three parts: what takes its inputs in, its body, and what reads the features.

The *features* are the pooled output of the body, and the input of the head: distances between source and target, the
head's gradient and the bound all speak of this one space.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from interbasin.batches import outputs_of
from interbasin.checks import require_choice
from interbasin.errors import DataError, WiringError
from interbasin.wiring.trace.calls import output_tensors

# What a body takes: rows of tokens, maps with channels second, grids with channels last, signals with channels second,
# or one vector for each input.
Layout = Literal["tokens", "maps", "grid", "signals", "vectors"]
Pool = Literal["mean", "first"]


@dataclass(frozen=True)
class Fittings:
    """What a new embedder may take over from the source's.

    Attributes:
        patch: The convolution that cuts images into patches.
        prefix: Tokens before those of the input, such as a class token, ``(tokens, width)``.
        positions: What is added at each token, those of the prefix first, ``(tokens, width)``.
        norm: What the tokens go through in the end.
    """

    patch: nn.Conv2d | None = None
    prefix: Tensor | None = None
    positions: Tensor | None = None
    norm: nn.Module | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """A pre-trained model, divided.

    Args:
        embedder: The source's inputs -> what the body takes.
        body: That -> states: ``(batch, tokens, width)``, ``(batch, channels, ...)`` or ``(batch, width)``.
        head: Features -> logits; None if the model has none.
        pool: How tokens become features: their mean, or the first of them.
        skip: Tokens at the beginning that have no part in the mean.
        layout: What the body takes; by default found from an example.
        fittings: What a new embedder may take over.
        states_last: Whether states of more than two axes have their channels last, as tokens do; by default those of
            three axes do, unless the body takes signals.

    Example:
        >>> source = Source(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 3))
        >>> source.features(torch.randn(5, 8)).shape
        torch.Size([5, 16])
    """

    embedder: nn.Module
    body: nn.Module
    head: nn.Module | None = None
    pool: Pool = "mean"
    skip: int = 0
    layout: Layout | None = None
    fittings: Fittings = field(default_factory=Fittings)
    states_last: bool | None = None

    def __post_init__(self) -> None:
        for name in ("embedder", "body", "head"):
            part = getattr(self, name)
            if not isinstance(part, nn.Module) and not (name == "head" and part is None):
                raise DataError(
                    f"The {name} of a source is a torch.nn.Module, found {type(part).__name__}; divide the model by "
                    "hand, or give it to Source.of."
                )
        require_choice("pool", self.pool, get_args(Pool))
        if self.layout is not None:
            require_choice("layout", self.layout, get_args(Layout))

    @classmethod
    def of(cls, model: nn.Module) -> Source:
        """A model of a common family, divided: vision transformers, Swin and ResNets of timm and transformers, BERT and
        its kin, and ``nn.Sequential`` (its first layer, the middle, its last).

        Raises:
            WiringError: for another family; says how to divide it by hand.
        """
        if isinstance(model, WholeSource):
            return model.source
        for divide in (_divide_timm_vit, _divide_timm_swin, _divide_resnet, _divide_transformers, _divide_sequence):
            found = divide(model)
            if found is not None:
                return found
        raise WiringError(
            f"How to divide a {type(model).__name__} is not known; give its parts, as Source(embedder, body, head), or "
            "a factory that returns them so: the embedder's output is what the body takes, and the head reads the "
            "body's pooled output."
        )

    def as_module(self) -> nn.Module:
        """The parts as one module, which `Source.of` takes apart again: to load weights into."""
        return WholeSource(self)

    def copy(self) -> Source:
        """The same parts with tensors of their own."""
        return replace(
            self,
            embedder=copy.deepcopy(self.embedder),
            body=copy.deepcopy(self.body),
            head=copy.deepcopy(self.head),
            fittings=copy.deepcopy(self.fittings),
        )

    def embed(self, inputs: Any) -> Tensor:
        """What the body takes, for inputs of the source."""
        return _first_tensor(outputs_of(self.embedder, inputs, 0), "embedder")

    def mean_embedding(self, body_inputs: Tensor) -> Tensor:
        """The mean over positions of what the body takes, one row for each input.

        Tokens at the beginning that are the same for all inputs have no part in it.
        """
        if body_inputs.ndim == 2:
            return body_inputs
        if self.layout in ("tokens", "grid"):
            return body_inputs.flatten(1, -2)[:, self.prefix_length :].mean(1)
        return body_inputs.flatten(2).mean(2)

    @property
    def prefix_length(self) -> int:
        """How many tokens stand before those of the input, such as a class token."""
        return 0 if self.fittings.prefix is None else len(self.fittings.prefix)

    def states(self, body_inputs: Tensor) -> Tensor:
        """What the body puts out."""
        return _first_tensor(self.body(body_inputs), "body")

    def pool_states(self, states: Tensor) -> Tensor:
        """Features, one row for each input."""
        if states.ndim == 2:
            return states
        if self.has_tokens(states):
            return states[:, 0] if self.pool == "first" else states.flatten(1, -2)[:, self.skip :].mean(1)
        return states.flatten(2).mean(2)

    def has_tokens(self, states: Tensor) -> bool:
        """Whether channels lie along the last axis of states."""
        return self.states_last if self.states_last is not None else states.ndim == 3 and self.layout != "signals"

    def features(self, inputs: Any) -> Tensor:
        """Features of inputs of the source."""
        return self.pool_states(self.states(self.embed(inputs)))

    def with_layout(self, inputs: Any) -> Source:
        """The same source, with its layout found from an example of its inputs where it was not given.

        Raises:
            WiringError: if what the body takes has neither two, three nor four axes.
        """
        if self.layout is not None:
            return self
        with torch.no_grad():
            axes = self.embed(inputs).ndim
        known: dict[int, Layout] = {2: "vectors", 3: "tokens", 4: "maps"}
        if axes not in known:
            raise WiringError(
                f"The embedder puts out a tensor of {axes} axes, and a new one can be made for 2 to 4; give layout=, "
                "or an embedder of your own."
            )
        return replace(self, layout=known[axes])


class WholeSource(nn.Module):
    """A source as one module: inputs -> logits, or features where it has no head."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.embedder, self.body, self.head = source.embedder, source.body, source.head
        self._source = [source]  # in a list: it is no module

    @property
    def source(self) -> Source:
        """With the parts as they are now."""
        return replace(self._source[0], embedder=self.embedder, body=self.body, head=self.head)

    def forward(self, inputs: Any) -> Tensor:
        features = self.source.features(inputs)
        return features if self.head is None else self.head(features)


def _first_tensor(outputs: Any, part: str) -> Tensor:
    tensors = output_tensors(outputs)
    if not tensors:
        raise DataError(
            f"The {part} puts out no tensor, but a {type(outputs).__name__}; wrap it in a module that does."
        )
    return tensors[0]


# ---------------------------------------------------------------------- families


class _Calling(nn.Module):
    """Modules that are called one after the other by a function, as one module; their tensors keep one name each."""

    def __init__(self, call: Callable[..., Any], **modules: nn.Module | None) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, *args, **kwargs)


class _Taking(nn.Module):
    """A model up to where its body begins: the first of its blocks is handed what the body takes."""

    def __init__(self, model: nn.Module, first: str) -> None:
        super().__init__()
        self.model, self._first = model, first

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        caught: list[Tensor] = []

        def catch(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            caught.append(given[0] if given else next(iter(named.values())))
            raise _Caught

        handle = self.model.get_submodule(self._first).register_forward_pre_hook(catch, with_kwargs=True)
        try:
            self.model(*args, **kwargs)
        except _Caught:
            return caught[0]
        finally:
            handle.remove()
        raise WiringError(f"{type(self.model).__name__} did not call {self._first}; divide it by hand.")


class _Caught(Exception):
    """What the body takes was seen."""


def _divide_timm_vit(model: nn.Module) -> Source | None:
    parts = ("patch_embed", "blocks", "norm", "head")
    if type(model).__name__ != "VisionTransformer" or not all(hasattr(model, name) for name in parts):
        return None
    vit: Any = model
    prefix = vit.cls_token[0].detach() if getattr(vit, "cls_token", None) is not None else None
    positions = vit.pos_embed[0].detach() if getattr(vit, "pos_embed", None) is not None else None
    if positions is not None and prefix is not None and getattr(vit, "no_embed_class", False):
        positions = torch.cat([torch.zeros_like(prefix), positions])

    def run(self: Any, body_inputs: Tensor) -> Tensor:
        return self.norm(self.blocks(body_inputs))  # type: ignore[no-any-return]

    head = nn.Sequential(vit.fc_norm, vit.head)
    has_head = not isinstance(vit.head, nn.Identity)
    return Source(
        _Taking(model, "blocks.0"),
        _Calling(run, blocks=vit.blocks, norm=vit.norm),
        head if has_head else None,
        pool="first" if vit.global_pool == "token" else "mean",
        skip=vit.num_prefix_tokens,
        layout="tokens",
        fittings=Fittings(vit.patch_embed.proj, prefix, positions),
    )


def _divide_timm_swin(model: nn.Module) -> Source | None:
    if not type(model).__name__.startswith("SwinTransformer") or not hasattr(model, "layers"):
        return None
    swin: Any = model

    def run(self: Any, body_inputs: Tensor) -> Tensor:
        return self.norm(self.layers(body_inputs))  # type: ignore[no-any-return]

    return Source(
        swin.patch_embed,
        _Calling(run, layers=swin.layers, norm=swin.norm),
        swin.head.fc if hasattr(swin.head, "fc") else None,
        layout="grid",
        fittings=Fittings(swin.patch_embed.proj, norm=swin.patch_embed.norm),
        states_last=True,
    )


def _divide_resnet(model: nn.Module) -> Source | None:
    names = [name for name in ("layer1", "layer2", "layer3", "layer4") if hasattr(model, name)]
    if len(names) < 3 or not hasattr(model, "fc") or not hasattr(model, "conv1"):
        return None
    resnet: Any = model
    stem = [getattr(resnet, name) for name in ("conv1", "bn1", "act1", "relu", "maxpool") if hasattr(resnet, name)]
    body = nn.Sequential(*(getattr(resnet, name) for name in names))
    head = resnet.fc if isinstance(resnet.fc, nn.Linear) else None
    return Source(nn.Sequential(*stem), body, head, layout="maps", fittings=Fittings(_first_convolution(resnet.conv1)))


def _first_convolution(stem: nn.Module) -> nn.Conv2d | None:
    """Of a stem: itself, or the first of a deep one, which is a sequence."""
    return next((module for module in stem.modules() if isinstance(module, nn.Conv2d)), None)


def _divide_transformers(model: nn.Module) -> Source | None:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    base: Any = getattr(model, getattr(model, "base_model_prefix", "") or "-", model)
    if kind is None or not hasattr(base, "embedder" if kind == "resnet" else "embeddings"):
        return None  # a part of such a model has its configuration too
    head = getattr(model, "classifier", None)
    if kind in ("vit", "deit"):
        return _divide_vit(base, head)
    if kind in ("swin", "swinv2"):
        return _divide_swin(base, head)
    if kind == "resnet":
        stages, last = nn.Sequential(*base.encoder.stages), head[-1] if isinstance(head, nn.Sequential) else None
        fittings = Fittings(_first_convolution(base.embedder))
        return Source(base.embedder, stages, last if isinstance(last, nn.Linear) else None, "mean", 0, "maps", fittings)
    return _divide_bert(base, head) if hasattr(base.embeddings, "word_embeddings") else None


def _divide_vit(base: Any, head: nn.Module | None) -> Source:
    """ViT, and DeiT, which has a second token for distillation; heads read the first one."""
    embeddings = base.embeddings
    tokens = [getattr(embeddings, name, None) for name in ("cls_token", "distillation_token")]
    prefix = torch.cat([token[0].detach() for token in tokens if token is not None])
    blocks = getattr(base, "layers", None) or base.encoder.layer

    def run(self: Any, body_inputs: Tensor) -> Tensor:
        for block in self.blocks:
            body_inputs = _first_tensor(block(body_inputs), "body")
        return self.norm(body_inputs)  # type: ignore[no-any-return]

    return Source(
        embeddings,
        _Calling(run, blocks=blocks, norm=base.layernorm),
        head if isinstance(head, nn.Linear) else None,
        pool="first",
        layout="tokens",
        fittings=Fittings(embeddings.patch_embeddings.projection, prefix, embeddings.position_embeddings[0].detach()),
    )


def _divide_swin(base: Any, head: nn.Module | None) -> Source:
    """Its body takes a grid, because windows are cut from one; where it has absolute positions they are the body's."""
    patches = base.embeddings.patch_embeddings

    def embed(self: Any, images: Tensor) -> Tensor:
        tokens, grid = self.patches(images)
        return self.norm(tokens).unflatten(1, grid)  # type: ignore[no-any-return]

    def run(self: Any, body_inputs: Tensor) -> Tensor:
        tokens = body_inputs.flatten(1, 2)
        tokens = tokens if self.positions is None else tokens + self.positions
        return self.norm(_first_tensor(self.encoder(tokens, tuple(body_inputs.shape[1:3])), "body"))  # type: ignore[no-any-return]

    body = _Calling(run, encoder=base.encoder, norm=base.layernorm)
    body.positions = base.embeddings.position_embeddings
    return Source(
        _Calling(embed, patches=patches, norm=base.embeddings.norm),
        body,
        head if isinstance(head, nn.Linear) else None,
        layout="grid",
        fittings=Fittings(patches.projection, norm=base.embeddings.norm),
    )


def _divide_bert(base: Any, head: nn.Module | None) -> Source:
    """Encoders of text: features are the mean of the tokens, which every head can be fitted to."""
    embeddings = base.embeddings
    table = embeddings.position_embeddings.weight.detach()
    first = (getattr(embeddings, "padding_idx", None) or -1) + 1 if len(table) > 512 else 0  # RoBERTa counts from 2 on

    def embed(self: Any, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any) -> Tensor:
        tokens: Tensor = self.embeddings(input_ids, **others)
        return tokens if attention_mask is None else tokens * attention_mask[..., None].to(tokens.dtype)

    encoder = base.encoder if hasattr(base, "encoder") else base.transformer
    return Source(
        _Calling(embed, embeddings=embeddings),
        _MaskedEncoder(encoder),
        head if isinstance(head, nn.Linear) and not hasattr(base, "pooler") else None,
        layout="tokens",
        fittings=Fittings(positions=table[first:], norm=embeddings.LayerNorm),
    )


class _MaskedEncoder(nn.Module):
    """An encoder that looks at no token of zeros: padding. In the place of each it puts the mean of the others.

    The mean over all tokens is then that over those that there are. A target has no tokens of zeros.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, body_inputs: Tensor) -> Tensor:
        held = (body_inputs != 0).any(-1)
        if hasattr(self.encoder, "get_attention_mask"):  # DeBERTa, which makes its own of what is held
            states = _first_tensor(self.encoder(body_inputs, attention_mask=held.long()), "body")
        elif bool(held.all()):
            states = _first_tensor(self.encoder(body_inputs), "body")
        else:
            # Added to the scores of attention, which every kind of it understands.
            scores = torch.zeros_like(body_inputs[:, None, None, :, 0])
            scores = scores.masked_fill(~held[:, None, None], torch.finfo(body_inputs.dtype).min)
            states = _first_tensor(self.encoder(body_inputs, attention_mask=scores), "body")
        mask = held[..., None]
        mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        return torch.where(mask, states, mean)


def _divide_sequence(model: nn.Module) -> Source | None:
    if not isinstance(model, nn.Sequential) or len(model) < 3:
        return None
    first, *middle, last = model
    # What follows a layer elementwise belongs to it: the body begins with the next layer that has weights.
    stem = [first]
    while middle and not any(True for _ in middle[0].parameters()):
        stem.append(middle.pop(0))
    return Source(nn.Sequential(*stem), nn.Sequential(*middle), last) if middle else None
