"""The estimator: pairs in, a translation out, by scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from interbasin.arrays import like_input
from interbasin.errors import FileError, FitError, InterbasinError, UnknownNameError
from interbasin.jobs.translate.apply import Applied, translate_vectors
from interbasin.jobs.translate.auto import CANDIDATES, cosine, judged
from interbasin.jobs.translate.cards import Card
from interbasin.jobs.translate.methods import METHODS, Options, named
from interbasin.jobs.translate.relative import RelativeDecoder, RelativeEncoder, joined
from interbasin.jobs.translate.rows import paired_rows, rows_of
from interbasin.jobs.translate.translation import Translation
from interbasin.storage import new_folder, read_record, write_record

VERSION = 1
ALL = (*METHODS, "relative", "auto")


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
        delta, omega: Of pruning: how far apart anchors are kept, and over how many subsets is averaged.
        completion: Of relative-projection: ``"polar"``, the nearest isometry; ``"map"`` or None, the map itself.
        lengths: Of relative-projection, which sees directions alone: give rows back how much longer than others they
            were, about the mean. The paper does not.
        strength: Of the regularisation of relative-projection, ridge and cca; None has it chosen.
        standardise: Bring every dimension of both sides to variance 1 first (procrustes).
        whitening: How far both sides are whitened first, from 0 to 0.5 (procrustes).
        scale: Fit one factor too (procrustes).
        criterion: What auto judges by: ``"cosine"``, ``"retrieval"`` or ``"error"``.
        seed: Of everything that is drawn.

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
            y: The same items as the second sees them. ``"relative"`` does not look at it.
            card: What the vectors are: models, metric, prefixes. Kept with the files, and compared when they are used.

        Raises:
            ShapeError: if the two are not as many rows, or not rows at all.
            DataError: if they hold NaN or infinity; names the rows.
            FitError: if an option is none, or pairs are too few.
        """
        options = Options(**{one.name: getattr(self, one.name) for one in fields(Options)})
        if self.method not in ALL:
            raise UnknownNameError.of("method of translation", self.method, ALL)
        named(options)
        self.judged_: dict[str, float] = {}
        self.chosen_ = self.method
        if self.method == "relative":
            self.encoder_ = RelativeEncoder().fit(X)
            validate_data(self, X, skip_check_array=True)
            self.details_: dict[str, Any] = {"anchors": self.encoder_.n_anchors_}
            self.target_width_ = self.encoder_.n_anchors_
        else:
            x, y = paired_rows(X, y)
            validate_data(self, X, skip_check_array=True)
            method = self.method
            if method == "auto":
                self.judged_ = judged(x, y, options, self.criterion)
                if not self.judged_:
                    raise FitError("No method could be fitted on these pairs; name one to see why.")
                self.chosen_ = next(iter(self.judged_))
                chosen = CANDIDATES[self.chosen_]
                method, options = chosen.method, chosen.options(options)
            self.translation_, details = METHODS[method].function(x, y, options)
            self.details_ = {"pairs": len(x), **details}
            self.target_width_ = self.translation_.target_width
        self.card_ = Card.of(card)
        return self

    def chosen_params(self) -> dict[str, Any]:
        """The options of the method that was chosen: those of another translator that does without choosing."""
        check_is_fitted(self)
        if self.method != "auto":
            return dict(self.get_params())
        chosen = CANDIDATES[self.chosen_]
        return {**self.get_params(), "method": chosen.method, **chosen.changes}

    # ------------------------------------------------------------------ using it

    @property
    def source_width(self) -> int:
        check_is_fitted(self)
        return int(self.n_features_in_)

    @property
    def target_width(self) -> int:
        check_is_fitted(self)
        return self.target_width_

    @property
    def _n_features_out(self) -> int:
        return self.target_width_

    @property
    def carries_norms(self) -> bool:
        """Whether the lengths of rows mean something in what comes out, as scores by dot product and L2 need."""
        check_is_fitted(self)
        return self.chosen_ != "relative" and self.translation_.carries_norms

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a user of the translation should know; none, if all is well."""
        rank, most = self.details_.get("rank"), min(self.source_width, self.target_width)
        if rank is None or rank >= most:
            return ()
        remedy = (
            "Give more pairs." if self.details_.get("pairs", most) <= most else "One of the two spaces has no more."
        )
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
        return like_input(self.translation_.back()(rows), X)

    def score(self, X: Any, y: Any) -> float:
        """Mean cosine of translated rows with what they should be, about the mean of the latter; 1 at best."""
        check_is_fitted(self)
        if self.chosen_ == "relative":
            raise FitError("Cosines with anchors have nothing to be compared with; score a translation.")
        rows_of(X, "X", width=self.source_width, owner=type(self).__name__)
        source, target = paired_rows(X, y)
        rows_of(target, "Y", width=self.target_width, owner=type(self).__name__)
        return cosine(self.translation_(source.double()), target.double())

    # ------------------------------------------------------------------ files

    def apply(self, source: str | os.PathLike[str], output: str | os.PathLike[str], **options: Any) -> Applied:
        """Translate all vectors of a store into another; options as in `interbasin.jobs.translate.translate_vectors`.

        Args:
            source: A ``.npy``, ``.npz`` or ``.parquet`` file, ``lance://``, ``faiss://`` or ``postgresql://``.
            output: The same. The source stays as it is, and a run that was stopped goes on when it is called again.
            **options: ``column``, ``table``, ``key``, ``rows_per_batch``, ``bad_rows``, ``scale``, ``metric``,
                ``engine``, ``wrap``, ``in_place``, ``force`` and ``progress``.
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
        check_is_fitted(self)
        document: dict[str, Any] = {
            "options": self.get_params(),
            "chosen": self.chosen_,
            "details": self.details_,
            "judged": self.judged_,
            "card": self.card_.to_json(),
        }
        if self.chosen_ == "relative":
            part, tensors = self.encoder_.side_.described()
            document["side"], tensors = part, {**tensors, "anchors": self.encoder_.anchors_}
        else:
            part, tensors = self.translation_.described()
            document["translation"] = part
        write_record(folder, "translation", "translation", VERSION, document, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Translator:
        """The translator that was saved to ``folder``. Nothing that is loaded is executed.

        Raises:
            FileError: if there is none, or it is damaged.
        """
        document, tensors = read_record(folder, "translation", "translation", VERSION)
        try:
            found = cls(**document["options"])
            found.chosen_, found.details_, found.judged_ = (document[key] for key in ("chosen", "details", "judged"))
            found.card_ = Card.of(document["card"])
            if found.chosen_ == "relative":
                found.encoder_ = RelativeEncoder._of(document["side"], tensors)
                found.n_features_in_ = found.encoder_.n_features_in_
                found.target_width_ = found.encoder_.n_anchors_
            else:
                found.translation_ = Translation.restored(document["translation"], tensors)
                found.n_features_in_ = found.translation_.source_width
                found.target_width_ = found.translation_.target_width
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise FileError(
                f"The translation in {folder} is damaged ({error}); copy it again or fit it anew."
            ) from error
        return found


def compose(
    encoder: RelativeEncoder, decoder: RelativeDecoder, completion: str | None = "polar", lengths: bool = False
) -> Translator:
    """The translator from the space of ``encoder`` to that of ``decoder``, which were fitted apart.

    Args:
        encoder: Fitted on the anchors as the first encoder sees them.
        decoder: Fitted on the same items, in the same order, as the second sees them.
        completion, lengths: See `Translator`. With ``completion="polar"`` rows differ from those of
            ``decoder.transform(encoder.transform(rows))``, which go through the relative space as it is; with None and
            without lengths they are the same.

    Raises:
        FitError: if these are no such halves; if their anchors are not as many, or are known to be others.
    """
    translation, details = joined(encoder, decoder, completion, lengths)
    found = Translator(
        variant=decoder.variant,
        delta=decoder.delta,
        omega=decoder.omega,
        completion=completion,
        lengths=lengths,
        strength=decoder.strength,
        seed=decoder.seed,
    )
    found.translation_, found.details_ = translation, {"pairs": encoder.n_anchors_, **details}
    found.chosen_, found.judged_, found.card_ = found.method, {}, Card()
    found.n_features_in_, found.target_width_ = encoder.side_.width, decoder.side_.width
    return found
