"""What ``--compare`` shows beside the methods of transport, by name. Each is a function ``(task, variant, **options)``.

``needs`` says what a row takes that another may lack: ``"data"`` (inputs), ``"tuned"`` (tuned A is run),
``"outputs"`` (shared ones), ``"gradients"``, ``"labels"``, ``"shapes"`` (equal ones). Rows with labels stand apart.
"""

from __future__ import annotations

from collections.abc import Callable

from interbasin.jobs.transport.comparison.baselines import (
    cross_lora,
    head_ridge,
    none,
    ortho,
    padded,
    random,
    random_through_maps,
    through_linear,
    through_linear_orthogonal,
    through_linear_ridge,
    through_pinv,
    through_pinv_orthogonal,
    through_pinv_tikhonov,
    tuned_source,
)
from interbasin.jobs.transport.comparison.controls import bico, gradfix, label_ridge, theseus_gradfix, transfusion
from interbasin.jobs.transport.comparison.distillation import STARTS, distil
from interbasin.jobs.transport.comparison.written_in import written_in
from interbasin.jobs.transport.task import Transported
from interbasin.methods import Method, MethodTable

DATA = frozenset({"data"})
WITH_LABELS = frozenset({"data", "labels", "gradients"})

COMPARED: MethodTable[Callable[..., Transported]] = MethodTable(
    "row to compare with",
    [
        # Whether a gain is one at all.
        Method("none", "rinaldi:26", "the target as it is", none),
        Method("padded", "rinaldi:26", "the update in the corner of the target's tensors, zeros around it", padded),
        Method("random", "rinaldi:26", "noise of the update's norm in every tensor of the target", random),
        Method(
            "random-through-maps",
            "rinaldi:26",
            "noise of the update's norm in the source, through the maps of theseus",
            random_through_maps,
            needs=DATA,
        ),
        Method(
            "tuned-source",
            "interbasin",
            "tuned A itself: no update, and nothing of the target",
            tuned_source,
            needs=frozenset({"tuned"}),
        ),
        Method(
            "written-in",
            "interbasin",
            "tuned A embedded exactly in the target, where that is wide enough: nothing of the target is left",
            written_in,
            needs=frozenset({"tuned", "outputs"}),
        ),
        # Other maps.
        Method("pinv", "rinaldi:26", "through the coupled least squares", through_pinv, needs=DATA),
        Method(
            "pinv-tikhonov",
            "rinaldi:26",
            "through the coupled least squares with a ridge",
            through_pinv_tikhonov,
            needs=DATA,
        ),
        Method(
            "pinv-orthogonal",
            "rinaldi:26",
            "through the isometry nearest to pinv's map",
            through_pinv_orthogonal,
            needs=DATA,
        ),
        Method(
            "linear",
            "rinaldi:26",
            "through the least-squares map of each space; dual: exact for invertible maps; transpose: the paper's",
            through_linear,
            needs=DATA,
            variants=("dual", "transpose"),
        ),
        Method(
            "linear-ridge",
            "hoerl:70",
            "the same with a ridge",
            through_linear_ridge,
            needs=DATA,
            variants=("dual", "transpose"),
        ),
        Method(
            "linear-orthogonal",
            "rinaldi:26",
            "through the isometry nearest to the least-squares map",
            through_linear_orthogonal,
            needs=DATA,
        ),
        Method("ortho", "rinaldi:26", "as printed, the same map as theseus: listed to say so", ortho, needs=DATA),
        Method(
            "cross-lora",
            "xia:25",
            "from weights alone, through the singular directions of both base weights",
            cross_lora,
        ),
        Method(
            "transfusion",
            "rinaldi:25",
            "from weights alone, through permutations of heads and units; for equal shapes",
            transfusion,
            needs=frozenset({"shapes"}),
        ),
        # Whether the update had to be carried.
        Method(
            "head-ridge",
            "hoerl:70",
            "the target's last layer alone, fitted to tuned A's outputs",
            head_ridge,
            needs=frozenset({"data", "tuned", "outputs"}),
            options={"ridge": None},
        ),
        Method(
            "distil",
            "hinton:15",
            "tuned A distilled into the target by gradients, from the base or from theseus's update; with generic "
            "inputs the target is kept near its base on them",
            distil,
            needs=frozenset({"data", "tuned", "outputs", "gradients"}),
            options={"steps": 400, "rate": 1e-3, "batch_size": 256},
            variants=STARTS,
        ),
        # With labels.
        Method(
            "label-ridge",
            "hoerl:70",
            "the target's last layer alone, fitted to labels",
            label_ridge,
            needs=frozenset({"data", "labels"}),
            options={"ridge": None},
        ),
        Method(
            "bico",
            "son:26",
            "through isometries of each module's input activations and output gradients",
            bico,
            needs=WITH_LABELS,
            options={"loss": None},
        ),
        Method(
            "gradfix",
            "rinaldi:26b",
            "the entries of the update whose sign agrees with minus the target's gradient; for equal shapes",
            gradfix,
            needs=WITH_LABELS | {"shapes"},
            options={"loss": None},
        ),
        Method(
            "theseus+gradfix",
            "rinaldi:26b",
            "the same entries of what theseus makes of the update",
            theseus_gradfix,
            needs=WITH_LABELS,
            options={"loss": None},
        ),
    ],
)
