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
from interbasin.errors import DataError, FileError, InterbasinError
from interbasin.jobs.translate.inversion import Inversion
from interbasin.jobs.translate.methods import Options
from interbasin.jobs.translate.rows import rows_of
from interbasin.jobs.translate.translation import Standardiser
from interbasin.storage import new_folder, read_record, write_record

VERSION = 1
ENCODER, DECODER = "relative-encoder", "relative-decoder"  # the names of the files


class RelativeEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Rows of one space as cosines with anchors of that space.

    Example:
        >>> import numpy as np
        >>> anchors = np.random.default_rng(0).normal(size=(20, 5))
        >>> RelativeEncoder().fit(anchors).transform(anchors[:3]).shape
        (3, 20)
    """

    def fit(self, X: Any, y: Any = None, *, names: Sequence[str] | None = None) -> RelativeEncoder:
        """Take ``X``, one anchor per row.

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

    _n_features_out = n_anchors_

    def transform(self, X: Any) -> Any:
        """Cosines of each row with each anchor, about the anchors' mean; ``(rows, anchors)``."""
        check_is_fitted(self)
        rows = rows_of(X, "X", width=self.n_features_in_, owner=type(self).__name__)
        return like_input(self.side_.transform(rows) @ self.anchors_.to(rows).mT, X)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it to a new folder, exactly, whole or not at all."""
        check_is_fitted(self)
        side, tensors = self.to_json()
        with new_folder(folder, (ENCODER,), force=force) as temporary:
            write_record(temporary, ENCODER, ENCODER, VERSION, {"side": side, "names": self.names_}, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RelativeEncoder:
        """The encoder that was saved to ``folder``."""
        document, tensors = read_record(folder, ENCODER, ENCODER, VERSION)
        try:
            return cls.from_json(document["side"], tensors, document["names"])
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise _damage("encoder", folder, error) from error

    def to_json(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Its numbers in JSON's own types, and its tensors."""
        side, tensors = self.side_.to_json()
        return side, {**tensors, "anchors": self.anchors_}

    @classmethod
    def from_json(
        cls, side: Mapping[str, Any], tensors: Mapping[str, Tensor], names: str | None = None
    ) -> RelativeEncoder:
        """What `to_json` gave."""
        encoder = cls()
        encoder.side_ = Standardiser.from_json(side, tensors)
        encoder.anchors_, encoder.names_ = tensors["anchors"], names
        encoder.n_features_in_ = len(encoder.side_.mean)
        return encoder


class RelativeDecoder(BaseEstimator):  # type: ignore[misc]
    """Cosines with anchors as rows of the space that these anchors lie in.

    It is fitted on rows of one width, the anchors, and transforms rows of another, their cosines: no transformer by
    scikit-learn's definition, though it behaves like one.

    Args:
        variant: ``"regularised"``, by all anchors; ``"pruned"``, the paper's, by few that are far apart.
        strength: Of the regularisation; None chooses it by giving rows of this space back from half of its dimensions.
        delta, omega: Of pruning: the least distance of anchors that are kept, and the number of subsets to average.
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
        """Take ``X``, one anchor per row.

        Args:
            X: The anchors as the encoder of this space sees them.
            y: Ignored.
            names: What the anchors are; see `RelativeEncoder.fit`.
        """
        options = Options(**self.get_params())
        options.check()
        anchors = rows_of(X, "X, the anchors,", fewest=2)
        self.side_ = Standardiser.fit(anchors, unit=True)
        self.inversion_ = options.invert(self.side_.transform(anchors.double()))
        self.names_ = _digest(names, len(anchors))
        return self

    @property
    def weights_(self) -> Tensor:
        return self.inversion_.weights

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
        side, tensors = self.side_.to_json()
        document = {
            "side": side,
            "names": self.names_,
            "options": self.get_params(),
            "kept": list(self.inversion_.kept),
            "conditions": list(self.inversion_.conditions),
            "strength": self.inversion_.strength,
        }
        with new_folder(folder, (DECODER,), force=force) as temporary:
            write_record(temporary, DECODER, DECODER, VERSION, document, {**tensors, "weights": self.weights_})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RelativeDecoder:
        """The decoder that was saved to ``folder``."""
        document, tensors = read_record(folder, DECODER, DECODER, VERSION)
        try:
            decoder = cls(**document["options"])
            decoder.side_ = Standardiser.from_json(document["side"], tensors)
            kept, conditions = tuple(document["kept"]), tuple(document["conditions"])
            decoder.inversion_ = Inversion(tensors["weights"], kept, conditions, document["strength"])
            decoder.names_ = document["names"]
        except (KeyError, TypeError, ValueError, InterbasinError) as error:
            raise _damage("decoder", folder, error) from error
        return decoder


def _digest(names: Sequence[str] | None, count: int) -> str | None:
    """A hash of the names in their order."""
    if names is None:
        return None
    texts = [str(name) for name in names]
    if len(texts) != count:
        raise DataError(f"There are {count} anchors and {len(texts)} names; give a name for each, or none at all.")
    if len(set(texts)) < len(texts):
        repeated = next(name for name in texts if texts.count(name) > 1)
        raise DataError(f"Two anchors have the name {repeated!r:.80}; give each a name of its own, or none at all.")
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def _damage(half: str, folder: object, error: Exception) -> FileError:
    return FileError(f"The relative {half} in {folder} is damaged ({error}); copy it again or fit it anew.")
