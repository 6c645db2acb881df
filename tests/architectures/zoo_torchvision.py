"""Networks of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.architectures.architecture import CLASSES, Architecture, image
from torch import nn

from interbasin.extras import import_extra


def torchvision(
    name: str, size: int = 32, *, prepare: Callable[[Any], dict] | None = None, **options: Any
) -> Architecture:
    """The class or function ``name`` of ``torchvision.models``, or of a module below it, for images of ``size``.

    It is called with ``options``, and with those that ``prepare`` makes out of ``torchvision.models``.
    """

    def network() -> nn.Module:
        make = models = import_extra("torchvision.models", f"The architecture {name}", "timm")
        for part in name.split("."):
            make = getattr(make, part)
        return make(num_classes=CLASSES, **options, **(prepare(models) if prepare else {}))

    return Architecture(network, image(size))


def bottleneck(models: Any) -> dict[str, Any]:
    return {"block": models.resnet.Bottleneck}


def inverted(models: Any) -> dict[str, Any]:
    """Three blocks of MobileNetV3: without and with squeezing, with and without a step."""
    block = partial(models.mobilenetv3.InvertedResidualConfig, dilation=1, width_mult=1.0)
    return {
        "inverted_residual_setting": [
            block(16, 3, 20, 16, False, "RE", 1),
            block(16, 5, 24, 12, True, "HS", 2),
            block(12, 5, 28, 12, True, "HS", 1),
        ]
    }


def fused(models: Any) -> dict[str, Any]:
    efficientnet = models.efficientnet
    return {
        "inverted_residual_setting": [
            efficientnet.FusedMBConvConfig(2, 3, 1, 8, 8, 2),
            efficientnet.MBConvConfig(3, 3, 2, 8, 12, 2),
        ]
    }


ARCHITECTURES: dict[str, Architecture] = {
    "torchvision/squeezenet": torchvision("squeezenet1_1"),
    "torchvision/resnet": torchvision("ResNet", layers=[1, 1, 1, 1], prepare=bottleneck, width_per_group=16),
    "torchvision/shufflenet": torchvision(
        "ShuffleNetV2", stages_repeats=[2, 2, 2], stages_out_channels=[8, 16, 24, 32, 40]
    ),
    "torchvision/mobilenetv2": torchvision("mobilenet_v2", width_mult=0.2),
    "torchvision/mobilenetv3": torchvision("MobileNetV3", last_channel=40, prepare=inverted),
    "torchvision/mnasnet": torchvision("MNASNet", alpha=0.15),
    "torchvision/densenet": torchvision(
        "DenseNet", growth_rate=6, block_config=(2, 3), num_init_features=10, bn_size=2
    ),
    "torchvision/googlenet": torchvision("GoogLeNet", aux_logits=False, init_weights=False),
    "torchvision/efficientnetv2": torchvision("EfficientNet", dropout=0.1, last_channel=40, prepare=fused),
    "torchvision/regnet": torchvision(
        "RegNet",
        prepare=lambda models: {
            "block_params": models.regnet.BlockParams([1, 2], [8, 16], [4, 8], [1.0, 1.0], [2, 2], 0.25)
        },
    ),
    "torchvision/convnext": torchvision(
        "ConvNeXt",
        prepare=lambda models: {
            "block_setting": [models.convnext.CNBlockConfig(8, 12, 1), models.convnext.CNBlockConfig(12, None, 2)]
        },
    ),
    "torchvision/vit": torchvision(
        "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=56
    ),
    "torchvision/swin": torchvision(
        "SwinTransformer",
        patch_size=[2, 2],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        mlp_ratio=1.75,
    ),
    "torchvision/maxvit": torchvision(
        "MaxVit",
        64,
        input_size=(64, 64),
        stem_channels=8,
        partition_size=4,
        block_channels=[12, 16],
        block_layers=[1, 1],
        head_dim=4,
        stochastic_depth_prob=0.0,
    ),
}
