"""Makes torchvision importable beside a torch that its compiled operators were not built for.

A wheel of torchvision that was built for a CUDA torch does not load its operators beside a CPU torch, and then fails
to import: it describes operators (``torchvision::nms`` and others) that nobody declared. Networks for classification
call none of them, so it is enough to declare their signatures. Where the compiled operators load, nothing is done.

Import this module before torchvision, or before what imports it (timm, transformers); that is all. It imports neither.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align(Tensor input, Tensor rois, {POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {POOLED}) -> (Tensor, Tensor)",
    f"ps_roi_align(Tensor input, Tensor rois, {POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"ps_roi_pool(Tensor input, Tensor rois, {POOLED}) -> (Tensor, Tensor)",
    f"deform_conv2d({DEFORM}) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {POOLED}, {SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {POOLED}, {SHAPE}) -> Tensor",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {POOLED}, int sampling_ratio, {SHAPE})"
    " -> Tensor",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {POOLED}, {SHAPE}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def compiled_operators_load() -> bool:
    """Whether torchvision's own operators are there, or can be loaded."""
    if hasattr(torch.ops.torchvision, "nms"):
        return True
    package = importlib.util.find_spec("torchvision")
    folder = Path(package.origin).parent if package and package.origin else None
    for library in folder.glob("_C.*") if folder else ():
        try:
            torch.ops.load_library(library)
        except OSError:
            continue
        return hasattr(torch.ops.torchvision, "nms")
    return False


def declare() -> torch.library.Library | None:
    """Declare what torchvision describes while it is imported. The declarations live as long as what is returned."""
    if importlib.util.find_spec("torchvision") is None or compiled_operators_load():
        return None
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    return library


DECLARATIONS = declare()
