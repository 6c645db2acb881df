r"""LoRA: the names that PEFT gives its tensors, what ``adapter_config.json`` says, and the arithmetic of the factors.

A LoRA updates the weight of a layer by ``scaling * B @ A``. A reads what the layer reads, B writes what it writes, and
B may have a bias. Weights that are stored (in, out), as those of ``Conv1D`` are, and tables of embeddings take the
transpose; kernels of convolutions lie in A alone. Factors of tables are named ``lora_embedding_A``.

In memory a wrapped layer's own weight is ``layer.base_layer.weight``, a module that is trained whole is there twice
(``layer.original_module``, ``layer.modules_to_save.NAME``), and everything stands below ``base_model.model.``. Files
leave the adapter's name out. `delta.LoraUpdate` is a LoRA as updates of whole tensors.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from interbasin.checkpoints.adapter_settings import find_fault
from interbasin.checkpoints.checkpoint import read_json
from interbasin.checks import require_whole
from interbasin.errors import CheckpointError, DataError, ShapeError
from interbasin.storage import write_document

if TYPE_CHECKING:  # an adapter is recognised without torch, which a merge on disk does without
    from torch import Tensor

CONFIGURATION = "adapter_config.json"
PREFIX = "base_model.model."
DEFAULT = "default"  # what PEFT calls an adapter when it is the only one
_WRAPPED = re.compile(r"\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")
_FACTOR = re.compile(
    r"^(?P<layer>.*)\.lora_(?P<embedding>embedding_)?(?P<letter>[AB])"
    r"(\.(?P<adapter>(?!(?:weight|bias)$)[^.]+))?(\.(?P<part>weight|bias))?$"
)
# Factors of an update, of a LoRA or its relatives, whatever stands around them.
_FACTORS = re.compile(
    r"(^|\.)(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|hada_w[12]_[ab]|lokr_w[12]\w*)(\.|$)"
)
# Settings under which an update is not scaling * B @ A for every layer that the adapter names -> what they make of it.
_OTHER_ARITHMETIC = {
    "use_dora": "a DoRA, whose magnitudes are lengths of rows of the updated weight",
    "use_qalora": "a QALoRA, which pools its inputs",
    "alora_invocation_tokens": "an activated LoRA, which acts on some tokens only",
    "layer_replication": "a LoRA of a network whose layers are repeated",
    "target_parameters": "a LoRA of bare parameters",
    "trainable_token_indices": "a LoRA with rows of the embedding trained apart",
    "use_bdlora": "a BD-LoRA, whose factors are made of blocks",
    "arrow_config": "an Arrow router of several LoRAs",
    "kasa_config": "a KaSA, which takes small singular values out of the base",
    "monteclora_config": "a MonteCLoRA, whose factors are drawn at random",
}
# Beginnings of values of init_lora_weights under which PEFT changes the base too, when it puts the adapter on.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Layer and adapter -> a factor of the update, and its rank.
Ranks: TypeAlias = "dict[tuple[str, str], tuple[str, int]]"


# ---------------------------------------------------------------------- names


def plain_name(name: str) -> str:
    """The name of a tensor in the network beneath.

    Example:
        >>> plain_name("base_model.model.blocks.0.fc.base_layer.weight")
        'blocks.0.fc.weight'
    """
    return _WRAPPED.sub("", name.removeprefix(PREFIX))


def name_in_file(name: str) -> str:
    """The name of an adapter's tensor without what PEFT adds in memory, or leaves out in one of the two.

    Example:
        >>> name_in_file("fc.lora_A.default.weight"), name_in_file("fc.lora_A.weight")
        ('fc.lora_A', 'fc.lora_A')
    """
    return name.replace(".modules_to_save", "").replace(f".{DEFAULT}", "").removesuffix(".weight")


def is_adapter_name(name: str) -> bool:
    """Whether a tensor of that name belongs to an adapter, or to a network with one on it."""
    return name.startswith(PREFIX) or ".lora_" in name


def is_dora_name(name: str) -> bool:
    """Whether a tensor of that name holds the magnitudes of a DoRA."""
    return ".lora_magnitude_vector" in name


def refuse_factors(label: str, names: Iterable[str]) -> None:
    """Refuse the factors of an adapter among the tensors of a network: the sum of products is no product of sums."""
    factor = next((name for name in names if _FACTORS.search(name)), None)
    if factor is not None:
        raise DataError(
            f"{label} holds a LoRA ({factor}), whose factors cannot be merged one by one; merge it into its base "
            "first (PEFT: model.merge_and_unload(), then save_pretrained) and give that."
        )


@dataclass(frozen=True)
class Factor:
    """One factor of a low-rank update."""

    name: str
    layer: str  # which it updates
    letter: str  # "A" reads what the layer reads, "B" writes what it writes
    adapter: str  # PEFT's name of the adapter, which files leave out
    of_table: bool  # whether it updates an embedding
    is_bias: bool  # whether it is the bias behind B

    @property
    def weight(self) -> str:
        """The tensor that it updates."""
        return f"{self.layer}.weight"

    def rank(self, shape: tuple[int, ...]) -> int:
        return shape[0 if self.letter == "A" else 1]


def factor_of(name: str) -> Factor | None:
    """What a name says if it is that of a factor."""
    match = _FACTOR.match(name)
    if match is None:
        return None
    of_table, is_bias = match["embedding"] is not None, match["part"] == "bias"
    return Factor(name, match["layer"], match["letter"], match["adapter"] or "", of_table, is_bias)


def refuse_another_rank(factor: Factor, shape: tuple[int, ...], ranks: Ranks) -> None:
    """Refuse a factor whose rank is not that of the other of its update: they are of two adapters, without a product.

    ``ranks`` are those of the factors that were met before; this one is added.
    """
    if factor.is_bias or len(shape) < 2:
        return
    name, rank = ranks.setdefault((factor.layer, factor.adapter), (factor.name, factor.rank(shape)))
    if rank != factor.rank(shape):
        raise ShapeError(
            f"{name} has rank {rank} and {factor.name} has rank {factor.rank(shape)}; take both from one adapter."
        )


# ---------------------------------------------------------------------- the configuration


@dataclass(frozen=True)
class Adapter:
    """What an adapter is, and of what.

    Attributes:
        method: PEFT's name of the method, for example ``"LORA"``.
        base: The folder or hub id of the network it was trained on, if it says so.
        rank: The inner width of a LoRA; None for other methods. Single layers may have another: see `rank_of`.
        alpha: Its scale before division by the rank (or its root); None for other methods.
        targets: The modules it changes: names, or one regular expression.
        settings: The whole configuration.
    """

    method: str
    base: str | None
    rank: int | None
    alpha: float | None
    targets: tuple[str, ...] | str
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def is_lora(self) -> bool:
        return self.method.upper() == "LORA"

    @property
    def trained_whole(self) -> tuple[str, ...]:
        """The modules whose own tensors were trained and are stored: PEFT's ``modules_to_save``."""
        return tuple(self.settings.get("modules_to_save") or ())

    @property
    def is_transposed(self) -> bool:
        """Whether weights are stored (in, out), where their shapes do not tell: PEFT's ``fan_in_fan_out``."""
        return bool(self.settings.get("fan_in_fan_out"))

    def rank_of(self, layer: str) -> int:
        """The rank of a layer's update: that of the first ``rank_pattern`` that fits its name, else the usual one."""
        return int(self._setting(layer, "rank_pattern", self.rank or 0))

    def scaling_of(self, layer: str) -> float:
        """What the product of a layer's factors is multiplied with: alpha over the rank, or over its root (rsLoRA)."""
        rank, alpha = self.rank_of(layer), self._setting(layer, "alpha_pattern", self.alpha or 0)
        return alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)

    def require_rank(self, factor: Factor, shape: tuple[int, ...]) -> None:
        """Refuse a factor of another rank than the configuration says: its scale would be that of another adapter."""
        layer = plain_name(f"{factor.layer}.").removesuffix(".")
        if factor.is_bias or len(shape) < 2 or factor.rank(shape) == self.rank_of(layer):
            return
        raise CheckpointError(
            f"{factor.name} has rank {factor.rank(shape)} where the configuration of the adapter says "
            f"{self.rank_of(layer)} (r, or rank_pattern), so that its scale is not known; give the "
            f"{CONFIGURATION} that belongs to it."
        )

    def require_plain_lora(self, where: object) -> None:
        """Refuse another method of PEFT, or a variant, whose updates are not products of two factors."""
        variant = next((what for key, what in _OTHER_ARITHMETIC.items() if self.settings.get(key)), None)
        start = str(self.settings.get("init_lora_weights")).lower()
        if variant is None and start.startswith(_CHANGE_THE_BASE):
            variant = f"a LoRA that begins as {start}, for which PEFT changes the base as well"
        if not self.is_lora or variant is not None:
            raise CheckpointError(
                f"{where} is {variant or f'an adapter ({self.method}) and no LoRA'}, so that its update is no product "
                "of two factors; merge it into its base first (PEFT: model.merge_and_unload()) and give that."
            )
        if not self.rank or self.alpha is None:
            raise CheckpointError(
                f"{where} does not say its rank and scale (r is {self.rank}, lora_alpha is {self.alpha}); save the "
                "adapter again with its save_pretrained."
            )

    def _setting(self, layer: str, patterns: str, default: float) -> float:
        for pattern, value in (self.settings.get(patterns) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", layer):  # as PEFT matches them
                return float(value)
        return default


def parse_adapter(settings: Mapping[str, Any], where: object) -> Adapter:
    """The adapter that settings of PEFT describe; ``where`` is what messages call them.

    Raises:
        CheckpointError: If they do not describe one.
    """
    fault = find_fault(settings)
    if fault is not None:
        raise CheckpointError(
            f"{where} does not describe an adapter of PEFT: {fault} is {settings.get(fault)!r}; save the adapter again "
            "with its save_pretrained."
        )
    targets = settings.get("target_modules") or ()
    return Adapter(
        str.__str__(settings["peft_type"]),  # in memory PEFT has an enumeration of text for it
        settings.get("base_model_name_or_path") or None,
        settings.get("r"),
        settings.get("lora_alpha"),
        targets if isinstance(targets, str) else tuple(targets),
        settings,
    )


def read_adapter(folder: Path) -> Adapter:
    """The adapter that ``adapter_config.json`` in ``folder`` describes.

    Raises:
        CheckpointError: If it cannot be read or does not describe one.
    """
    return parse_adapter(read_json(folder / CONFIGURATION), folder / CONFIGURATION)


def write_base(folder: Path, base: str) -> None:
    """Have the adapter in ``folder``, which is being filled, belong to ``base``."""
    settings = {**read_adapter(folder).settings, "base_model_name_or_path": base, "revision": None}
    write_document(folder / CONFIGURATION, settings)


# ---------------------------------------------------------------------- arithmetic


@dataclass(frozen=True, eq=False)
class Factors:
    """An update as a product of two factors.

    Attributes:
        a: (rank, in), and the kernel behind it for a convolution.
        b: (out, rank), with a kernel of ones behind it for a convolution.
        lost: The share of the update's Frobenius norm that the product lacks.
    """

    a: Tensor
    b: Tensor
    lost: float = 0.0


def product(a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
    """``B @ A`` in the shape of the weight, in float32 or float64.

    Args:
        a, b: The factors; see `Factors`.
        transposed: Whether the weight is stored (in, out), or a table of embeddings.
    """
    import torch

    from interbasin.arrays import working_dtype  # with torch

    wide = working_dtype(a.dtype, b.dtype)
    update: Tensor = torch.tensordot(b.to(wide).flatten(1), a.to(wide), dims=1)
    return update.mT.contiguous() if transposed else update


def factorise(update: Tensor, rank: int, *, transposed: bool = False) -> Factors:
    """The two factors of that rank whose product is nearest to an update, of equal norms, in the update's dtype.

    Computed from the singular value decomposition in float64, so that the product is the best of its rank
    [eckart:36]. Where the rank is larger than the update allows, the rest is zero.

    Args:
        update: Of a weight: two axes or, for a convolution, the kernel behind them.
        rank: The inner width.
        transposed: Whether the weight is stored (in, out), or a table of embeddings.

    Raises:
        ShapeError: If the update has fewer than two axes.
        DataError: If the rank is no whole number above zero, or the update is not finite.
    """
    import torch

    require_whole("rank", rank, least=1)
    if update.ndim < 2:
        raise ShapeError(f"An update of shape {tuple(update.shape)} has no two factors; give that of a weight.")
    if not bool(torch.isfinite(update).all()):
        raise DataError("An update that is not finite has no factors; repair it first.")
    upright = update.detach().mT if transposed else update.detach()
    u, s, vh = torch.linalg.svd(upright.double().flatten(1), full_matrices=False)
    kept = min(rank, len(s))
    root = s[:kept].sqrt()
    a, b = s.new_zeros(rank, vh.shape[1]), s.new_zeros(u.shape[0], rank)
    a[:kept], b[:, :kept] = root[:, None] * vh[:kept], u[:, :kept] * root
    norm = float(s.norm())
    return Factors(
        a.reshape(rank, *upright.shape[1:]).to(update.dtype),
        b.reshape(-1, rank, *[1] * (update.ndim - 2)).to(update.dtype),
        float(s[kept:].norm()) / norm if norm else 0.0,
    )


# ---------------------------------------------------------------------- writing


def write_adapter(
    path: str | os.PathLike[str],
    factors: Mapping[str, Factors],
    *,
    base: str | os.PathLike[str] | None = None,
    tables: Collection[str] = (),
    whole: Mapping[str, Tensor] | None = None,
    modules: Iterable[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Write a folder that ``peft.PeftModel.from_pretrained`` loads as a LoRA, all of it or nothing.

    Every scaling is 1: the update of a layer is the product of its factors.

    Args:
        path: The folder.
        factors: Layer (a module's name in the network) -> the factors of its update.
        base: The MODEL that the adapter belongs to.
        tables: Which of the layers are embeddings.
        whole: Tensors that replace those of the base, by name: all tensors of each module that they are of.
        modules: The names of all modules of the network. With them layers are targeted by short names where these are
            unambiguous, as other programs expect; without, by one expression that fits them alone.
        settings: More of PEFT's settings, such as ``task_type`` and ``fan_in_fan_out``.
        force: Replace what this function wrote there. Anything else is never replaced.

    Raises:
        DataError, ShapeError: If there are no factors, or two that have no product.
        FileError: If ``path`` is in the way.
    """
    if not factors:
        raise DataError("An adapter has factors for one layer at least, and none were given; give the factors.")
    tensors: dict[str, Tensor] = {}
    for layer, pair in factors.items():
        if pair.a.ndim < 2 or pair.b.ndim < 2 or pair.a.shape[0] != pair.b.shape[1]:
            raise ShapeError(
                f"The factors of {layer} have shapes {tuple(pair.a.shape)} and {tuple(pair.b.shape)}, which have no "
                "product B @ A; give A as (rank, in) and B as (out, rank)."
            )
        a, b = ("lora_embedding_A", "lora_embedding_B") if layer in tables else ("lora_A.weight", "lora_B.weight")
        tensors |= {f"{PREFIX}{layer}.{a}": pair.a, f"{PREFIX}{layer}.{b}": pair.b}
    tensors |= {PREFIX + name: tensor for name, tensor in (whole or {}).items()}
    ranks = {layer: int(pair.a.shape[0]) for layer, pair in factors.items()}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    others = {f"^{re.escape(layer)}": rank for layer, rank in ranks.items() if rank != usual}
    document = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None if base is None else os.fspath(base),
        "inference_mode": True,
        "r": usual,
        "lora_alpha": usual,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": _targets(list(factors), modules),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole or {}}) or None,
        **(settings or {}),
    }
    from interbasin.checkpoints.write import write_checkpoint  # which knows adapters by this file

    with tempfile.TemporaryDirectory() as beside:
        write_document(Path(beside) / CONFIGURATION, document)
        write_checkpoint(path, tensors, like=beside, force=force)


def _targets(layers: list[str], modules: Iterable[str] | None) -> list[str] | str:
    """What PEFT's ``target_modules`` say to mean these layers and no others."""
    names = set(modules or ())
    for targets in (sorted({layer.rpartition(".")[2] for layer in layers}), sorted(layers)):
        # A name stands for all modules whose last parts are that name.
        meant = {name for name in names if any(name == target or name.endswith(f".{target}") for target in targets)}
        if names and meant == set(layers) and not any(target.isdigit() for target in targets):
            return targets
    return "|".join(re.escape(layer) for layer in sorted(layers))
