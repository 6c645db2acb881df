"""A whole store translated into another: what ``interbasin translate apply`` does."""

from __future__ import annotations

import os
from collections.abc import Callable

from interbasin.data.vectors.stores.addresses import parse_address
from interbasin.data.vectors.stores.files import ArrayRows
from interbasin.data.vectors.stores.opening import open_rows, open_sink
from interbasin.errors import FileError, UnknownNameError
from interbasin.jobs.translate.applying import Applied, FittedTranslator, apply, check_fits

__all__ = ["ENGINES", "translate_vectors"]

ENGINES = ("local", "ray")


def translate_vectors(
    translator: FittedTranslator,
    vectors: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    column: str | None = None,
    table: str | None = None,
    key: str | None = None,
    rows_per_batch: int | None = None,
    bad_rows: str = "refuse",
    scale: float | None = None,
    metric: str | None = None,
    engine: str = "local",
    wrap: bool = False,
    in_place: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Applied:
    """Translate all vectors of a store into another, with order, ids and other columns kept, and the source untouched.

    A run that was stopped goes on where it was when it is called again with the same arguments, except for FAISS
    indexes, and the result is the same.

    Args:
        translator: A fitted `Translator`.
        vectors: A ``.npy``, ``.npz`` or ``.parquet`` file; ``lance://FOLDER/TABLE[#COLUMN]``; ``faiss://FILE``;
            ``postgresql://USER@HOST/DATABASE?table=TABLE&column=COLUMN[&key=KEY]``.
        output: The same; of a PostgreSQL source ``postgresql:?table=TABLE&column=COLUMN``, in the same database.
        column: Which column has the vectors, where ``vectors`` does not say.
        table: Which table, likewise.
        key: PostgreSQL: the column that tells rows apart, by default the primary key.
        rows_per_batch: By default about 32 MiB; of a Parquet output a row group.
        bad_rows: ``"refuse"`` ends at a row of zeros, NaN or infinity and names it; ``"keep"`` hands such rows on.
        scale: For vectors of whole numbers: what each is multiplied by.
        metric: How the vectors are compared (``"cosine"``, ``"dot"``, ``"l2"``), where the store does not say.
        engine: ``"local"``, or ``"ray"`` to read and translate on a Ray cluster, every machine of which must reach the
            store.
        wrap: FAISS: touch no row; the new index translates queries, so ``translator`` goes from the new space to the
            old.
        in_place: Let the output be the source itself (files), which is replaced when all is written.
        force: Replace what is at ``output``, and start anew where an unfinished run was of other work.
        progress: Called with the rows that are done and all rows.

    Raises:
        InterbasinError: if something does not fit; see the classes. What was done is kept, unless that is nothing.

    Example:
        >>> import numpy as np
        >>> class Doubled:
        ...     source_width, target_width, carries_norms = 2, 4, True
        ...     def transform(self, x):
        ...         return np.concatenate([x, x], axis=1)
        >>> np.save("old.npy", np.arange(1.0, 7.0, dtype="float32").reshape(3, 2))
        >>> translate_vectors(Doubled(), "old.npy", "new.npy").rows
        3
        >>> np.load("new.npy")[1].tolist()
        [3.0, 4.0, 3.0, 4.0]
    """
    if engine not in ENGINES:
        raise UnknownNameError.of("engine", engine, ENGINES)
    source = parse_address(os.fspath(vectors), column=column, table=table, key=key)
    destination = parse_address(os.fspath(output))
    rows = open_rows(source)
    if wrap:
        from interbasin.data.vectors.stores.faiss import wrapped

        if source.kind != "faiss" or destination.kind != "faiss":
            raise FileError(
                f"Only a FAISS index can be wrapped, found {source.shown}; give faiss:// files, or translate the rows."
            )
        return wrapped(translator, rows, destination.path, source.path, force=force, in_place=in_place)
    check_fits(translator, rows, scale)
    if engine == "ray":
        from interbasin.data.vectors.stores.on_ray import pieces_on_ray, require_ray

        require_ray(source)
    sink = open_sink(
        destination, source, rows, translator, scale=scale, bad_rows=bad_rows, force=force, in_place=in_place
    )

    if isinstance(rows, ArrayRows) and (sink.rows or engine == "ray"):
        try:
            rows.check_bytes()
        except BaseException:
            sink.close()
            raise

    def note(done: int) -> None:
        if progress is not None:
            progress(done, rows.rows)

    return apply(
        translator,
        rows,
        sink,
        rows_per_batch=rows_per_batch,
        bad_rows=bad_rows,
        scale=scale,
        metric=metric,
        progress=note,
        pieces=None if engine == "local" else pieces_on_ray(source, rows),
    )
