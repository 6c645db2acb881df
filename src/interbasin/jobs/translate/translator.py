"""The estimator: pairs in, a translation out, by scikit-learn's conventions; and the card of its vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from interbasin.arrays import like_input
from interbasin.checks import require_choice
from interbasin.errors import DataError, FileError, FitError, InterbasinError
from interbasin.evaluate.retrieval import METRICS
from interbasin.jobs.translate.apply import Applied, translate_vectors
from interbasin.jobs.translate.methods import CANDIDATES, METHODS, Options, complete, mean_cosine, score_candidates
from interbasin.jobs.translate.relative import RelativeDecoder, RelativeEncoder
from interbasin.jobs.translate.rows import paired_rows, rows_of
from interbasin.jobs.translate.translation import Translation
from interbasin.storage import new_folder, read_record, write_record

VERSION = 1
ALL = (*METHODS, "relative", "auto")


@dataclass(frozen=True)
class Card:
    """What vectors are. Every entry is optional; None is not known, and not compared.

    Attributes:
        source_model, target_model: The encoders, by name.
        metric: How vectors are compared: ``"cosine"``, ``"dot"`` or ``"l2"``.
        role: What the vectors are of: ``"documents"`` or ``"queries"``.
        source_prefix, target_prefix: What each encoder puts before a text.
        chunking: How long texts were cut.
        note: Anything else.
    """

    source_model: str | None = None
    target_model: str | None = None
    metric: str | None = None
    role: str | None = None
    source_prefix: str | None = None
    target_prefix: str | None = None
    chunking: str | None = None
    note: str | None = None

    @classmethod
    def of(cls, entries: Card | Mapping[str, Any] | None) -> Card:
        """A card from what a user gave; an error for entries that cards do not have, and for those that are no text."""
        if entries is None or isinstance(entries, Card):
            return entries or cls()
        if not isinstance(entries, Mapping):
            raise DataError(f"A card is a mapping of entries to texts, found {entries!r:.80}.")
        known = {field.name for field in fields(cls)}
        for name, value in entries.items():
            if name not in known:
                raise DataError(f"A card has no entry {name!r}; it has: {', '.join(sorted(known))}.")
            if value is not None and not isinstance(value, str):
                raise DataError(f"{name} of a card is a text, found {value!r}.")
        card = cls(**entries)
        if card.metric is not None and card.metric not in METRICS:
            raise DataError(f"The metric of a card is one of {', '.join(METRICS)}, found {card.metric!r}.")
        return card

    def to_json(self) -> dict[str, str]:
        """What is known, in JSON's own types."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def refuse_others(self, other: Card, what: str) -> None:
        """Refuse vectors whose card contradicts this one; names the entry, and whether it is the other direction."""
        mine, theirs = self.to_json(), other.to_json()
        source, target = mine.get("source_model"), mine.get("target_model")
        if target is not None and source != target and theirs.get("source_model") == target:
            raise DataError(
                f"{what} come from {target!r}, which this translation leads to, not from: it goes "
                f"{source or 'an unnamed model'!r} to {target!r}. Fit one in the other direction."
            )
        for name in mine.keys() & theirs.keys() - {"note"}:
            if mine[name] != theirs[name]:
                raise DataError(
                    f"{what} say that their {name} is {theirs[name]!r}, and the translation was fitted for "
                    f"{mine[name]!r}; fit one for them."
                )


class Translator(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embeddings of one encoder in the space of another.

    Fitted on pairs: row i of ``X`` and row i of ``Y`` are the same item, seen by the two encoders, whose widths may
    differ. Takes and gives numpy arrays or tensors.

    Args:
        method: ``"relative-projection"`` (through cosines with the pairs as anchors; the two sides could be fitted
            apart, see `RelativeEncoder`), ``"procrustes"`` (a rotation), ``"ridge"`` (least squares, shrunk as leaving
            one pair out advises), ``"affine"`` (plain least squares), ``"cca"``, ``"relative"`` (cosines with the
            anchors, and no way back from them), or ``"auto"``: the best of these on pairs that are held out.
        variant: Of relative-projection: ``"regularised"``, or ``"pruned"``, the paper's.
        delta, omega: Of pruning: the least distance of anchors that are kept, and the number of subsets to average.
        completion: Of relative-projection: ``"polar"``, the nearest isometry; ``"map"`` or None, the map itself.
        lengths: Of relative-projection, which sees directions alone: give rows back how much longer than others they
            were, about the mean. The paper does not.
        strength: Of the regularisation of relative-projection, ridge and cca; None chooses it.
        standardise: Scale every dimension of both sides to variance 1 first (procrustes).
        whitening: How far both sides are whitened first, from 0 to 0.5 (procrustes).
        scale: Fit one factor too (procrustes).
        criterion: What auto judges by: ``"cosine"``, ``"retrieval"`` or ``"error"``.
        seed: Of all random draws.

    Attributes:
        translation_: What was fitted.
        details_: What the method found: the number of pairs, their rank, strength, anchors kept, condition number.
        chosen_: The method that auto chose; else the method.
        judged_: With auto, the score of every candidate on held-out pairs, the best first.
        card_: What the vectors are, as far as the user said so; kept with the files.

    Example:
        >>> import numpy as np
        >>> draws = np.random.default_rng(0)
        >>> X = draws.normal(size=(200, 8))
        >>> Y = X @ np.linalg.qr(draws.normal(size=(8, 8)))[0] + 3
        >>> translator = Translator(method="procrustes").fit(X, Y)
        >>> bool(np.allclose(translator.transform(X[:5]), Y[:5]))
        True
    """

    def __init__(
        self,
        method: str = "relative-projection",
        variant: str = "regularised",
        delta: float = 0.7,
        omega: int = 8,
        completion: str | None = "polar",
        lengths: bool = False,
        strength: float | None = None,
        standardise: bool = False,
        whitening: float = 0.0,
        scale: bool = True,
        criterion: str = "cosine",
        seed: int = 0,
    ) -> None:
        self.method = method
        self.variant = variant
        self.delta = delta
        self.omega = omega
        self.completion = completion
        self.lengths = lengths
        self.strength = strength
        self.standardise = standardise
        self.whitening = whitening
        self.scale = scale
        self.criterion = criterion
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.method != "relative"
        tags.target_tags.multi_output = True
        tags.target_tags.two_d_labels = True
        tags.target_tags.single_output = False
        return tags

    def fit(self, X: Any, y: Any = None, *, card: Card | Mapping[str, Any] | None = None) -> Translator:
        """Fit on pairs.

        Args:
            X: Rows as the first encoder sees them.
            y: The same items as the second sees them; ``"relative"`` ignores it.
            card: What the vectors are: models, metric, prefixes. Kept with the files, and compared when they are used.

        Raises:
            ShapeError: if these are no rows, or their numbers differ.
            DataError: if they hold NaN or infinity, naming the rows; if an option is out of range.
            FitError: if there are too few pairs.
        """
        options = Options(**{field.name: getattr(self, field.name) for field in fields(Options)})
        method = require_choice("method of translation", self.method, ALL)
        options.check()
        self.judged_: dict[str, float] = {}
        self.chosen_ = method
        if method == "relative":
            self.encoder_ = RelativeEncoder().fit(X)
            validate_data(self, X, skip_check_array=True)
            self.details_: dict[str, Any] = {"anchors": self.encoder_.n_anchors_}
        else:
            x, y = paired_rows(X, y)
            validate_data(self, X, skip_check_array=True)
            if method == "auto":
                self.judged_ = score_candidates(x, y, options, self.criterion)
                if not self.judged_:
                    raise FitError("No method could be fitted on these pairs; name one to see why.")
                self.chosen_ = next(iter(self.judged_))
                options = replace(options, **CANDIDATES[self.chosen_])
            self.translation_, details = METHODS[options.method].function(x, y, options)
            self.details_ = {"pairs": len(x), **details}
        self.card_ = Card.of(card)
        return self

    def chosen_params(self) -> dict[str, Any]:
        """The options with which another translator is fitted as this one was, without choosing a method."""
        check_is_fitted(self)
        return {**self.get_params(), **(CANDIDATES[self.chosen_] if self.method == "auto" else {})}

    @property
    def source_width(self) -> int:
        check_is_fitted(self)
        return int(self.n_features_in_)

    @property
    def target_width(self) -> int:
        check_is_fitted(self)
        return self.encoder_.n_anchors_ if self.chosen_ == "relative" else self.translation_.map.target_width

    _n_features_out = target_width

    @property
    def carries_norms(self) -> bool:
        """Whether the lengths of rows mean something in what comes out, as scores by dot product and L2 need."""
        check_is_fitted(self)
        return self.chosen_ != "relative" and self.translation_.carries_norms

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of the translation should know, in sentences."""
        rank, most = self.details_.get("rank"), min(self.source_width, self.target_width)
        if rank is None or rank >= most:
            return ()
        few = self.details_.get("pairs", most) <= most
        remedy = "Give more pairs." if few else "One of the two spaces has no more."
        return (f"The pairs show {rank} of {most} directions; what lies in the others is lost. {remedy}",)

    def transform(self, X: Any) -> Any:
        """Rows of the first space in the second, in their own precision."""
        check_is_fitted(self)
        if self.chosen_ == "relative":
            return self.encoder_.transform(X)
        rows = rows_of(X, "X", width=self.source_width, owner=type(self).__name__)
        return like_input(self.translation_(rows), X)

    def inverse_transform(self, X: Any) -> Any:
        """Rows of the second space in the first, where nothing was lost on the way there.

        Raises:
            FitError: if something was.
        """
        check_is_fitted(self)
        if self.chosen_ == "relative":
            raise FitError("There is no way back from cosines alone; decode them with a RelativeDecoder.")
        rows = rows_of(X, "X", width=self.target_width, owner=type(self).__name__)
        return like_input(self.translation_.inverse()(rows), X)

    def score(self, X: Any, y: Any) -> float:
        """Mean cosine of translated rows with the right ones, about the mean of the latter; 1 at best."""
        check_is_fitted(self)
        if self.chosen_ == "relative":
            raise FitError("Cosines with anchors have nothing to be compared with; score a translation.")
        rows_of(X, "X", width=self.source_width, owner=type(self).__name__)
        source, target = paired_rows(X, y)
        rows_of(target, "Y", width=self.target_width, owner=type(self).__name__)
        return mean_cosine(self.translation_(source.double()), target.double())

    def apply(self, source: str | os.PathLike[str], output: str | os.PathLike[str], **options: Any) -> Applied:
        """Translate all vectors of a store into another; options as in `interbasin.jobs.translate.translate_vectors`.

        Args:
            source: A ``.npy``, ``.npz`` or ``.parquet`` file, ``lance://``, ``faiss://`` or ``postgresql://``.
            output: The same. The source stays as it is, and a run that was stopped goes on when it is called again.
            **options: ``column``, ``rows_per_batch``, ``bad_rows``, ``engine``, ``in_place``, ``force`` and more.
        """
        check_is_fitted(self)
        return translate_vectors(self, source, output, **options)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write ``translation.json`` and ``translation.safetensors`` to a new folder, exactly, whole or not at all."""
        check_is_fitted(self)
        with new_folder(folder, ("translation",), force=force) as temporary:
            self.write_into(temporary)

    def write_into(self, folder: Path) -> None:
        """Write the files of `save` into a folder that is being filled."""
        document: dict[str, Any] = {
            "options": self.get_params(),
            "chosen": self.chosen_,
            "details": self.details_,
            "judged": self.judged_,
            "card": self.card_.to_json(),
        }
        if self.chosen_ == "relative":
            document["side"], tensors = self.encoder_.to_json()
        else:
            document["translation"], tensors = self.translation_.to_json()
        write_record(folder, "translation", "translation", VERSION, document, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Translator:
        """The translator that was saved to ``folder``. Nothing that is loaded is executed.

        Raises:
            FileError: if there is none, or it is damaged.
        """
        document, tensors = read_record(folder, "translation", "translation", VERSION)
        try:
            translator = cls(**document["options"])
            translator.chosen_, translator.details_ = document["chosen"], document["details"]
            translator.judged_, translator.card_ = document["judged"], Card.of(document["card"])
            if translator.chosen_ == "relative":
                translator.encoder_ = RelativeEncoder.from_json(document["side"], tensors)
                translator.n_features_in_ = translator.encoder_.n_features_in_
            else:
                translator.translation_ = Translation.from_json(document["translation"], tensors)
                translator.n_features_in_ = translator.translation_.map.source_width
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise FileError(
                f"The translation in {folder} is damaged ({error}); copy it again or fit it anew."
            ) from error
        return translator


def compose(
    encoder: RelativeEncoder, decoder: RelativeDecoder, completion: str | None = "polar", lengths: bool = False
) -> Translator:
    """The translator from the space of ``encoder`` to that of ``decoder``, which were fitted apart.

    Args:
        encoder: Fitted on the anchors as the first encoder sees them.
        decoder: Fitted on the same items, in the same order, as the second sees them.
        completion, lengths: See `Translator`. With ``completion=None`` and without lengths rows are those of
            ``decoder.transform(encoder.transform(rows))``; with ``"polar"`` they differ.

    Raises:
        FitError: if these are no such halves; if their anchors are not as many, or are known to be others.
    """
    for half, kind in ((encoder, RelativeEncoder), (decoder, RelativeDecoder)):
        if not isinstance(half, kind):
            kinds = f"{type(encoder).__name__} and {type(decoder).__name__}"
            raise FitError(f"compose takes a RelativeEncoder and a RelativeDecoder, in this order; found {kinds}.")
        check_is_fitted(half)
    Options(completion=completion, lengths=lengths).check()
    if encoder.n_anchors_ != decoder.n_anchors_:
        raise FitError(
            f"The encoder has {encoder.n_anchors_} anchors and the decoder {decoder.n_anchors_}; fit both on the same "
            "items in the same order."
        )
    if None not in (encoder.names_, decoder.names_) and encoder.names_ != decoder.names_:
        raise FitError("The anchors of encoder and decoder have other names; fit both on the same items, in one order.")
    map, rank = complete(decoder.weights_.mT @ encoder.anchors_, completion)
    translator = Translator(completion=completion, lengths=lengths, **decoder.get_params())
    translator.translation_ = Translation(encoder.side_, map, decoder.side_, lengths)
    translator.details_ = {"pairs": encoder.n_anchors_, "rank": rank, **decoder.inversion_.details()}
    translator.chosen_, translator.judged_, translator.card_ = translator.method, {}, Card()
    translator.n_features_in_ = encoder.n_features_in_
    return translator
