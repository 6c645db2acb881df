"""The two halves of inverse relative projection, each fitted on one encoder's anchors alone, saved and loaded apart.

An encoder turns rows of its space into cosines with its anchors; a decoder turns cosines with the same items into rows
of its own space. Any encoder goes with any decoder whose anchors are the same items in the same order.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from interbasin.arrays import copy_row_major, like_input
from interbasin.errors import DataError, FileError, FitError, InterbasinError
from interbasin.jobs.translate.inversion import Inversion
from interbasin.jobs.translate.methods import COMPLETIONS, Options, completed, inverted, named
from interbasin.jobs.translate.rows import rows_of
from interbasin.jobs.translate.standardiser import Standardiser
from interbasin.jobs.translate.translation import Translation
from interbasin.storage import new_folder, read_record, write_record

VERSION = 1


class RelativeEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Rows of one space as cosines with anchors of that space.

    Example:
        >>> import numpy as np
        >>> anchors = np.random.default_rng(0).normal(size=(20, 5))
        >>> RelativeEncoder().fit(anchors).transform(anchors[:3]).shape
        (3, 20)
    """

    def fit(self, X: Any, y: Any = None, *, names: Sequence[str] | None = None) -> RelativeEncoder:
        """Take ``X``, a row an anchor.

        Args:
            X: The anchors as this encoder sees them.
            y: Ignored.
            names: What the anchors are (identifiers, texts). Where a decoder has names too, they are compared.
        """
        anchors = rows_of(X, "X, the anchors,", fewest=2)
        validate_data(self, X, skip_check_array=True)
        self.side_ = Standardiser.fit(anchors, unit=True)
        self.anchors_ = copy_row_major(self.side_.transform(anchors.double()))
        self.names_ = _digest(names, len(anchors))
        return self

    @property
    def n_anchors_(self) -> int:
        return len(self.anchors_)

    @property
    def _n_features_out(self) -> int:
        return len(self.anchors_)

    def transform(self, X: Any) -> Any:
        """Cosines of each row with each anchor, about the anchors' mean; ``(rows, anchors)``."""
        check_is_fitted(self)
        rows = rows_of(X, "X", width=self.side_.width, owner=type(self).__name__)
        return like_input(self.side_.transform(rows) @ self.anchors_.to(rows).mT, X)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it to a new folder, exactly, whole or not at all."""
        check_is_fitted(self)
        side, tensors = self.side_.described()
        with new_folder(folder, ("relative-encoder",), force=force) as temporary:
            document = {"side": side, "names": self.names_}
            tensors = {**tensors, "anchors": self.anchors_}
            write_record(temporary, "relative-encoder", "relative-encoder", VERSION, document, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RelativeEncoder:
        """The encoder that was saved to ``folder``."""
        document, tensors = read_record(folder, "relative-encoder", "relative-encoder", VERSION)
        try:
            return cls._of(document["side"], tensors, document["names"])
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise _damaged("encoder", folder, error) from error

    @classmethod
    def _of(cls, side: Mapping[str, Any], tensors: Mapping[str, Tensor], names: str | None = None) -> RelativeEncoder:
        found = cls()
        found.side_ = Standardiser.restored(side, tensors)
        found.anchors_, found.names_ = tensors["anchors"], names
        found.n_features_in_ = found.side_.width
        return found


class RelativeDecoder(BaseEstimator):  # type: ignore[misc]
    """Cosines with anchors as rows of the space that these anchors lie in.

    It is fitted on rows of one width, the anchors, and transforms rows of another, their cosines: no transformer by
    scikit-learn's word, though it behaves like one.

    Args:
        variant: ``"regularised"``, by all anchors; ``"pruned"``, the paper's, by few that are far apart.
        strength: Of the regularisation; None has it chosen by giving rows of this space back from half of what is seen
            of them.
        delta, omega: Of pruning: how far apart anchors are kept, and over how many subsets is averaged.
        seed: Of where subsets begin, and of what is looked at to choose a strength.
    """

    def __init__(
        self,
        variant: str = "regularised",
        strength: float | None = None,
        delta: float = 0.7,
        omega: int = 8,
        seed: int = 0,
    ) -> None:
        self.variant = variant
        self.strength = strength
        self.delta = delta
        self.omega = omega
        self.seed = seed

    def fit(self, X: Any, y: Any = None, *, names: Sequence[str] | None = None) -> RelativeDecoder:
        """Take ``X``, a row an anchor.

        Args:
            X: The anchors as the encoder of this space sees them.
            y: Ignored.
            names: What the anchors are; see `RelativeEncoder.fit`.
        """
        named(Options(variant=self.variant, strength=self.strength, delta=self.delta, omega=self.omega))
        anchors = rows_of(X, "X, the anchors,", fewest=2)
        self.side_ = Standardiser.fit(anchors, unit=True)
        back = inverted(
            self.side_.transform(anchors.double()), self.variant, self.strength, self.delta, self.omega, self.seed
        )
        self._take(back, _digest(names, len(anchors)))
        return self

    def _take(self, back: Inversion, names: str | None) -> None:
        self.weights_, self.names_ = back.weights, names
        self.kept_, self.conditions_, self.strength_ = back.kept, back.conditions, back.strength

    @property
    def n_anchors_(self) -> int:
        return len(self.weights_)

    def transform(self, X: Any) -> Any:
        """Rows of this space from their cosines, ``(rows, anchors)`` to ``(rows, width)``."""
        check_is_fitted(self)
        cosines = rows_of(X, "X, the cosines,", width=self.n_anchors_, owner=type(self).__name__)
        return like_input(self.side_.inverse_transform(cosines @ self.weights_.to(cosines)), X)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it to a new folder, exactly, whole or not at all."""
        check_is_fitted(self)
        side, tensors = self.side_.described()
        document = {
            "side": side,
            "names": self.names_,
            "options": self.get_params(),
            "kept": list(self.kept_),
            "conditions": list(self.conditions_),
            "strength": self.strength_,
        }
        with new_folder(folder, ("relative-decoder",), force=force) as temporary:
            tensors = {**tensors, "weights": self.weights_}
            write_record(temporary, "relative-decoder", "relative-decoder", VERSION, document, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RelativeDecoder:
        """The decoder that was saved to ``folder``."""
        document, tensors = read_record(folder, "relative-decoder", "relative-decoder", VERSION)
        try:
            found = cls(**document["options"])
            found.side_ = Standardiser.restored(document["side"], tensors)
            kept, conditions = tuple(document["kept"]), tuple(document["conditions"])
            found._take(Inversion(tensors["weights"], kept, conditions, document["strength"]), document["names"])
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise _damaged("decoder", folder, error) from error
        return found


def joined(
    encoder: RelativeEncoder, decoder: RelativeDecoder, completion: str | None, lengths: bool
) -> tuple[Translation, dict[str, Any]]:
    """An encoder and a decoder as one translation."""
    for half, kind in ((encoder, RelativeEncoder), (decoder, RelativeDecoder)):
        if not isinstance(half, kind):
            raise FitError(
                f"compose takes a RelativeEncoder and a RelativeDecoder, in this order; found {type(encoder).__name__} "
                f"and {type(decoder).__name__}."
            )
        check_is_fitted(half)
    if completion is not None and completion not in COMPLETIONS:
        named(Options(completion=completion))
    if encoder.n_anchors_ != decoder.n_anchors_:
        raise FitError(
            f"The encoder has {encoder.n_anchors_} anchors and the decoder {decoder.n_anchors_}: they must be the same "
            "items in the same order. Fit both on the anchors that they share."
        )
    if None not in (encoder.names_, decoder.names_) and encoder.names_ != decoder.names_:
        raise FitError(
            "The encoder and the decoder were fitted on anchors of different names, or in another order; fit both on "
            "the same items in the same order."
        )
    map, rank = completed(decoder.weights_.mT @ encoder.anchors_, completion)
    return Translation(encoder.side_, map, decoder.side_, lengths), {
        "rank": rank,
        "anchors": decoder.n_anchors_,
        "anchors_kept": sum(decoder.kept_) / len(decoder.kept_),
        "condition": sum(decoder.conditions_) / len(decoder.conditions_),
        **({} if decoder.strength_ is None else {"strength": decoder.strength_}),
    }


def _digest(names: Sequence[str] | None, count: int) -> str | None:
    if names is None:
        return None
    given = [str(one) for one in names]
    if len(given) != count:
        raise DataError(f"There are {count} anchors and {len(given)} names; give a name for each, or none at all.")
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise DataError(f"Two anchors have the name {twice!r:.80}; give each a name of its own, or none at all.")
    return hashlib.sha256("\0".join(given).encode("utf-8", "surrogatepass")).hexdigest()


def _damaged(half: str, folder: object, error: Exception) -> FileError:
    return FileError(f"The relative {half} in {folder} is damaged ({error}); copy it again or fit it anew.")
