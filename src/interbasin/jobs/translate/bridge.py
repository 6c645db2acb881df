"""A translation as a function for queries that needs numpy alone, or an ONNX runtime; and the folder of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from interbasin.errors import DataError, FitError
from interbasin.extras import import_extra
from interbasin.jobs.translate.thresholds import MatchedThreshold, Recalibration
from interbasin.jobs.translate.translation import AT_THE_MEAN
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Draft, Outcome, Result

LEAST = 1e-30  # a length to divide by
OPSET, IR = 17, 9  # understood by runtimes of 2023 and later
TOLERANCE = 1e-5

# As it is written beside the arrays, and shown in the documentation.
LOADER = '''\
import numpy as np


def load_bridge(path):
    """The function from rows of the source, (rows, width), to rows of the target."""
    b = dict(np.load(path))

    def bridge(x):
        u = (np.asarray(x, np.float64) - b["mean"]) / b["scale"]
        if b["floor"] >= 0:
            norm = np.linalg.norm(u, axis=-1, keepdims=True)
            u = np.where(norm > b["floor"], u / np.maximum(norm, 1e-30), 0)
        y = u @ b["matrix"].T + b["offset"]
        if b["length"] >= 0:
            y *= b["length"] / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-30)
        return y

    return bridge
'''


@dataclass(frozen=True, eq=False)
class Steps:
    """A translation as plain arrays: ``y = M u + b``, where ``u`` is ``x`` about a mean and perhaps scaled to length 1.

    In the end ``y`` is perhaps scaled to a fixed length.

    Attributes:
        mean: Subtracted first.
        matrix: M, (target, source); scales of single dimensions are in it.
        scale: What dimensions are divided by before the length is taken; ones where it is not.
        offset: b.
        floor: Rows nearer to the mean than this count as the mean; negative where rows keep their length.
        length: Of every row in the end; negative where rows keep theirs.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]
    floor: float
    length: float

    @classmethod
    def of(cls, translator: Translator) -> Steps:
        """The steps of a fitted translator."""
        check_is_fitted(translator)
        if translator.chosen_ == "relative":  # cosines with anchors: no way back from them
            side, anchors = translator.encoder_.side_, translator.encoder_.anchors_.double().numpy()
            ones, zeros = np.ones(len(side.mean)), np.zeros(len(anchors))
            return cls(side.mean.numpy(), ones, anchors, zeros, AT_THE_MEAN * side.norm, -1.0)
        translation = translator.translation_
        source, target = translation.source, translation.target
        by_direction = source.unit and not translation.lengths
        # With lengths, all rows are divided by one length, and not each by its own.
        matrix = translation.matrix / source.norm if source.unit and translation.lengths else translation.matrix
        return cls(
            mean=source.mean.numpy(),
            scale=np.ones(len(source.mean)) if source.deviation is None else source.deviation.numpy(),
            matrix=matrix.numpy(),
            offset=target.mean.numpy(),
            floor=AT_THE_MEAN * source.norm if by_direction else -1.0,
            length=-1.0 if target.length is None else target.length,
        )

    @property
    def widths(self) -> tuple[int, int]:
        return self.matrix.shape[1], self.matrix.shape[0]

    def __call__(self, x: Any) -> NDArray[Any]:
        """Rows of the source in the target's space, in double precision."""
        u = (np.asarray(x, dtype=np.float64) - self.mean) / self.scale
        if self.floor >= 0:
            norm = np.linalg.norm(u, axis=-1, keepdims=True)
            u = np.where(norm > self.floor, u / np.maximum(norm, LEAST), 0)
        y = u @ self.matrix.T + self.offset
        if self.length >= 0:
            y = y * (self.length / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), LEAST))
        return np.asarray(y)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bridge(Result):
    """A translation as a function that stands alone.

    Attributes:
        steps: Its arrays; calling them translates.
        card: What the vectors are, as far as it is known.
        scores: From old scores to new ones, if that was fitted.
        threshold: An old threshold and the new one, if they were matched.
    """

    steps: Steps
    card: Mapping[str, str]
    scores: Recalibration | None = None
    threshold: MatchedThreshold | None = None

    job = "translate bridge"
    headline = ("source_width", "target_width")

    def __call__(self, rows: Any) -> Any:
        """Rows of the source in the target's space."""
        return self.steps(rows)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        onnx: bool = True,
        request: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Outcome:
        """Write the outcome folder, whole or not at all; see `Result.save` and `write`."""
        return super().save(folder, request={"onnx": onnx, **(request or {})}, onnx=onnx, **options)

    def write(self, draft: Draft, *, onnx: bool = True, check: Any = None, notes: Sequence[str] = ()) -> None:
        """Add ``bridge.npz`` and ``load_bridge.py``, ``bridge.onnx`` if asked, and ``bridge.json``.

        Args:
            draft: The outcome.
            onnx: Also write a graph, and run it to compare.
            check: Rows to compare on; by default some about the source's mean.
            notes: What a reader should know of how scores were made.

        Raises:
            MissingExtraError: for the graph, without the extra ``vectors``.
        """
        np.savez(draft.folder / "bridge.npz", **vars(self.steps))
        draft.add("bridge", "file", "bridge.npz")
        draft.text("load_bridge.py", LOADER)
        draft.notes.extend(notes)
        if onnx:
            path = draft.folder / "bridge.onnx"
            write_graph(path, self.steps, dict(self.card))
            rows = self._draw_rows() if check is None else np.asarray(check)
            draft.metrics["onnx_difference"] = check_graph(path, self.steps, rows)
            draft.add("graph", "file", "bridge.onnx")
        source, target = self.steps.widths
        document: dict[str, Any] = {"source_width": source, "target_width": target, "card": dict(self.card)}
        if self.threshold is not None:  # before the points, of which there are many
            document["threshold"] = self.threshold.to_json()
        if self.scores is not None:
            points = {"old": self.scores.old.tolist(), "new": self.scores.new.tolist()}
            figures = {"pairs": self.scores.pairs, "rank_correlation": self.scores.rank_correlation}
            document["scores"] = points | figures
            draft.table("scores", points)
        draft.text("bridge.json", json.dumps(document, indent=2) + "\n")

    def _draw_rows(self) -> NDArray[np.float64]:
        """Rows about the source's mean, to compare on."""
        spread = max(abs(self.steps.mean).max(), 1.0) if self.steps.floor < 0 else self.steps.floor * 1e6
        normal = np.random.default_rng(0).normal(size=(64, len(self.steps.mean)))
        return np.asarray(self.steps.mean + spread * normal * self.steps.scale)


def bridge(
    translator: Translator, *, scores: Recalibration | None = None, threshold: MatchedThreshold | None = None
) -> Bridge:
    """A fitted translator as a function for queries that needs nothing but numpy, or an ONNX runtime.

    To search an old index with a new model, fit the translator from the new model's vectors to the old one's, and send
    every query through the bridge.

    Args:
        translator: Fitted.
        scores: From old scores to new ones; see `recalibrate`.
        threshold: An old threshold and the new one; see `match_threshold`.

    Raises:
        DataError: if scores or threshold are plain numbers, which say nothing of new scores.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> x = draws.normal(size=(100, 6))
        >>> translator = Translator(method="ridge").fit(x, x[:, ::-1] * 2)
        >>> bool(np.allclose(bridge(translator)(x[:3]), translator.transform(x[:3])))
        True
    """
    if scores is not None and not isinstance(scores, Recalibration):
        raise DataError(f"scores must come from recalibrate(old, new), found {scores!r:.80}.")
    if threshold is not None and not isinstance(threshold, MatchedThreshold):
        raise DataError(f"threshold must come from match_threshold(old, new, threshold), found {threshold!r:.80}.")
    steps = Steps.of(translator)
    metrics = dict(zip(("source_width", "target_width"), map(float, steps.widths), strict=True))
    if threshold is not None:
        metrics |= threshold.metrics()
    if scores is not None:
        metrics["score_rank_correlation"] = scores.rank_correlation
    return Bridge(
        metrics=metrics,
        notes=() if threshold is None else tuple(threshold.notes()),
        steps=steps,
        card=translator.card_.to_json(),
        scores=scores,
        threshold=threshold,
    )


def write_graph(path: Path, steps: Steps, notes: dict[str, str]) -> None:
    """Write ``x`` (rows, source), float32 -> ``y`` (rows, target), float32."""
    onnx = import_extra("onnx", "Writing an ONNX graph", "vectors")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Any) -> str:
        with np.errstate(over="ignore"):  # what float32 cannot hold is found when the graph is run
            constants.append(numpy_helper.from_array(np.asarray(value).astype(np.float32), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    # Centred first, and not folded into the offset: that would lose the digits of rows far from the origin.
    rows = node("Sub", ["x", constant("mean", steps.mean)], "centred")
    if not np.all(steps.scale == 1):
        rows = node("Div", [rows, constant("scale", steps.scale)], "scaled")
    if steps.floor >= 0:
        norm = node("ReduceL2", [rows], "norm", axes=[-1], keepdims=1)
        safe = node("Max", [norm, constant("least", LEAST)], "safe_norm")
        unit = node("Div", [rows, safe], "unit")
        far = node("Greater", [norm, constant("floor", steps.floor)], "far")
        rows = node("Where", [far, unit, constant("nothing", 0.0)], "directions")
    product = node("MatMul", [rows, constant("matrix", steps.matrix.T)], "product")
    shifted = node("Add", [product, constant("offset", steps.offset)], "y" if steps.length < 0 else "shifted")
    if steps.length >= 0:
        norm = node("ReduceL2", [shifted], "length", axes=[-1], keepdims=1)
        safe = node("Max", [norm, constant("least_length", LEAST)], "safe_length")
        factor = node("Div", [constant("wanted", steps.length), safe], "factor")
        node("Mul", [shifted, factor], "y")
    source, target = steps.widths
    graph = helper.make_graph(
        nodes,
        "translation",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", source])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", target])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="interbasin")
    model.ir_version = IR
    helper.set_model_props(model, notes)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def check_graph(path: Path, steps: Steps, rows: NDArray[Any]) -> float:
    """Run the graph on rows and compare: the largest difference, relative to the largest number.

    A difference that is more than float32 explains is an error.
    """
    onnxruntime = import_extra("onnxruntime", "Checking an ONNX graph", "vectors")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    single = np.ascontiguousarray(rows, dtype=np.float32)
    (by_graph,) = session.run(["y"], {"x": single})
    by_steps = steps(single)
    with np.errstate(invalid="ignore"):
        difference = float(np.abs(by_graph - by_steps).max() / max(float(np.abs(by_steps).max()), LEAST))
    if not difference <= TOLERANCE:
        raise FitError(
            f"The ONNX graph differs by {difference:.1e} from the translation, more than {TOLERANCE:.0e}: its numbers "
            "are too large or too small for float32. Scale the vectors before fitting, or use the numpy form."
        )
    return difference
