"""A translation as plain arrays and four steps: centre, perhaps to length 1, one matrix, perhaps to a fixed length.

The same steps are written as an ONNX graph, for which alone onnx is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from interbasin.errors import FitError
from interbasin.extras import import_extra
from interbasin.jobs.translate.standardiser import AT_THE_MEAN
from interbasin.jobs.translate.translator import Translator

LEAST = 1e-30  # a length to divide by


@dataclass(frozen=True, eq=False)
class Steps:
    """``y = M u + b``, where ``u`` is ``x`` about a mean and perhaps of length 1; then perhaps ``y`` of a fixed length.

    Attributes:
        mean: Subtracted first.
        matrix: M, (target, source); scales of single dimensions are in it.
        scale: What dimensions are divided by before the length is taken; ones where it is not.
        offset: b.
        floor: Rows nearer to the mean than this are at it; negative where rows keep their length.
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
            side, matrix = translator.encoder_.side_, translator.encoder_.anchors_.double().numpy()
            ones = np.ones(side.width)
            return cls(side.mean.numpy(), ones, matrix, np.zeros(len(matrix)), AT_THE_MEAN * side.norm, -1.0)
        translation = translator.translation_
        source, target = translation.source, translation.target
        matrix = translation.map.matrix.double().numpy()
        factor = np.ones(len(matrix)) if target.deviation is None else target.deviation.numpy().copy()
        if target.unit:
            factor = factor * target.norm
        by_direction = source.unit and not translation.lengths
        if source.unit and translation.lengths:  # all rows are divided by one length, and not each by its own
            factor = factor / source.norm
        return cls(
            mean=source.mean.numpy(),
            scale=np.ones(source.width) if source.deviation is None else source.deviation.numpy(),
            matrix=factor[:, None] * matrix,
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, as it is written to a file."""
        return {name: np.asarray(value) for name, value in vars(self).items()}


OPSET, IR = 17, 9  # understood by runtimes of 2023 and later
TOLERANCE = 1e-5


def write_graph(path: Path, steps: Steps, notes: dict[str, str]) -> None:
    """Write ``x`` (rows, source), float32 -> ``y`` (rows, target), float32.

    Raises:
        MissingExtraError: without the extra ``vectors``.
    """
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
    entered = node("Sub", ["x", constant("mean", steps.mean)], "centred")
    if not np.all(steps.scale == 1):
        entered = node("Div", [entered, constant("scale", steps.scale)], "scaled")
    if steps.floor >= 0:
        norm = node("ReduceL2", [entered], "norm", axes=[-1], keepdims=1)
        safe = node("Max", [norm, constant("least", LEAST)], "safe_norm")
        unit = node("Div", [entered, safe], "unit")
        far = node("Greater", [norm, constant("floor", steps.floor)], "far")
        entered = node("Where", [far, unit, constant("nothing", 0.0)], "entered")
    carried = node("MatMul", [entered, constant("matrix", steps.matrix.T)], "carried")
    last = "y" if steps.length < 0 else "left"
    left = node("Add", [carried, constant("offset", steps.offset)], last)
    if steps.length >= 0:
        norm = node("ReduceL2", [left], "length", axes=[-1], keepdims=1)
        safe = node("Max", [norm, constant("least_length", LEAST)], "safe_length")
        factor = node("Div", [constant("wanted", steps.length), safe], "factor")
        node("Mul", [left, factor], "y")
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
    """Run the graph on rows and compare; the largest difference, relative to the largest number.

    Raises:
        FitError: if it is more than float32 explains.
        MissingExtraError: without the extra ``vectors``.
    """
    onnxruntime = import_extra("onnxruntime", "Checking an ONNX graph", "vectors")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    single = np.ascontiguousarray(rows, dtype=np.float32)
    (found,) = session.run(["y"], {"x": single})
    wanted = steps(single)
    with np.errstate(invalid="ignore"):
        difference = float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
    if not difference <= TOLERANCE:
        raise FitError(
            f"The ONNX graph differs by {difference:.1e} from the translation, more than {TOLERANCE:.0e}: its numbers "
            "are too large or too small for float32. Scale the vectors before fitting, or use the numpy form."
        )
    return difference
