"""The steps of a translation as an ONNX graph. The only file that needs onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import FitError
from interbasin.extras import import_extra
from interbasin.jobs.translate.bridging.steps import LEAST, Steps

__all__ = ["check_graph", "write_graph"]

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
