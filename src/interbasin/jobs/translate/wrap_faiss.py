"""A FAISS index wrapped: it translates queries of the new space into the old one, and no row is touched."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.extras import import_extra
from interbasin.jobs.translate.apply import Applied, FittedTranslator
from interbasin.jobs.translate.bridge import Steps
from interbasin.jobs.translate.translator import Translator
from interbasin.vectors.stores.faiss import FaissRows, write_index
from interbasin.vectors.stores.opening import Rows, refuse_unless_free

AFFINE_TOLERANCE = 1e-4
UNIT = 1e-3  # how far from 1 the length of vectors may be that were normalised


def wrap_index(
    translator: FittedTranslator, rows: Rows, destination: Path, source: Path, *, force: bool, in_place: bool
) -> Applied:
    """Write the index of old vectors in ``source`` again so that it translates queries of the new space.

    The translator goes from the new space to the old one. It must be one affine map, behind which rows may be scaled to
    length 1: that is all that FAISS can do to a query.
    """
    assert isinstance(rows, FaissRows)
    faiss = import_extra("faiss", f"Writing {destination}", "vectors")
    started = time.perf_counter()
    if translator.target_width != rows.width:
        swapped = " It seems to go the other way." if translator.source_width == rows.width else ""
        raise ShapeError(
            f"Wrapping {rows.name} needs a translator from the new space to the one of its vectors, of {rows.width} "
            f"numbers; this one gives {translator.target_width}.{swapped} Fit it with the new vectors as source."
        )
    refuse = functools.partial(refuse_unless_free, destination, source, force=force, in_place=in_place)
    refuse()
    matrix, offset, unit = affine_form(translator)
    transform = faiss.LinearTransform(translator.source_width, translator.target_width, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, dtype=np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(offset, dtype=np.float32), transform.b)
    transform.is_trained = True
    if unit:
        index = faiss.IndexPreTransform(faiss.NormalizationTransform(translator.target_width, 2.0), rows.index)
        index.prepend_transform(transform)
    else:
        index = faiss.IndexPreTransform(transform, rows.index)
    calculated = time.perf_counter()
    write_index(index, destination, source, faiss, refuse)
    return Applied(
        metrics={"rows": rows.rows, "resumed_at": 0},
        notes=(
            "No row was touched: the index translates queries of the new space into the old one, and its scores are "
            "those of the old space.",
        ),
        timings={"translate": calculated - started, "finish": time.perf_counter() - calculated},
        request={"vectors": rows.name, "output": f"faiss://{destination}", "wrap": True},
        source=rows.name,
        output=f"faiss://{destination}",
        rows=rows.rows,
        resumed_at=0,
        source_width=translator.source_width,
        target_width=translator.target_width,
        dtype="float32",
        bad_rows={},
    )


def affine_form(translator: FittedTranslator) -> tuple[NDArray[Any], NDArray[Any], bool]:
    """The matrix, (source, target), and the offset of a translator, and whether it ends by scaling rows to length 1."""
    if not isinstance(translator, Translator):
        return *_probe(translator), False
    steps = Steps.of(translator)
    if steps.floor >= 0:
        raise DataError(
            f"This translator ({translator.chosen_}) looks at the direction of every row, which FAISS cannot do; fit "
            "ridge, affine or procrustes from the new space to the old, or rebuild the index without wrap."
        )
    if steps.length >= 0 and abs(steps.length - 1) > UNIT:
        raise DataError(
            f"The old vectors of this translator all have length {steps.length:.6g}, and FAISS can only scale to "
            "length 1; fit it on old vectors of length 1, or rebuild the index without wrap."
        )
    matrix = (steps.matrix / steps.scale).T
    return matrix, steps.offset - steps.mean @ matrix, steps.length >= 0


def _probe(translator: FittedTranslator) -> tuple[NDArray[Any], NDArray[Any]]:
    """The matrix and the offset of any translator, from its translations of a few rows."""
    width = translator.source_width
    probes = np.random.default_rng(0).standard_normal((8, width))
    # Differences about a point rather than about zero, where a translator that looks at lengths has no answer.
    point = probes[:1]
    here = translator.transform(point)
    matrix = translator.transform(point + np.eye(width)) - here
    offset = (here - point @ matrix)[0]
    translated = translator.transform(probes)
    tolerance = AFFINE_TOLERANCE * float(np.abs(translated).max())
    if not np.allclose(translated, probes @ matrix + offset, rtol=0, atol=tolerance):
        raise DataError(
            "This translator is not one affine map (it scales rows by their lengths); give a fitted Translator of "
            "ridge, affine or procrustes, or rebuild the index without wrap."
        )
    return matrix, offset
