"""Networks of timm in which convolutions, pooling or dense layers mix positions."""

from __future__ import annotations

from functools import partial

from tests.architectures.architecture import Architecture
from tests.architectures.from_timm import timm
from torch import nn

RESNET = {"layers": (2, 1, 2, 1), "channels": (8, 12, 16, 20)}
MIXER = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 24}
STAGES = {"depths": (1, 2, 1, 1), "dims": (8, 12, 16, 24)}


def branch(blocks: int, *channels: int) -> dict:
    """A stage of HRNet, with a branch for every number of channels."""
    return {
        "num_modules": 1,
        "num_branches": len(channels),
        "block_type": "BOTTLENECK" if len(channels) == 1 else "BASIC",
        "num_blocks": (blocks,) * len(channels),
        "num_channels": channels,
        "fuse_method": "SUM",
    }


ARCHITECTURES: dict[str, Architecture] = {
    # residual blocks
    "timm/resnet": timm("resnet:resnet18", **RESNET, listed=True),
    "timm/resnet-bottleneck": timm("resnet:resnet50", **RESNET),
    "timm/resnet-deep-stem": timm("resnet:resnet26t", **RESNET, stem_width=6),
    "timm/resnet-blur": timm("resnet:resnetblur50", **RESNET),
    "timm/resnext": timm("resnet:resnext50_32x4d", **RESNET, cardinality=4, base_width=16),
    "timm/se-resnet": timm("resnet:seresnet50", **RESNET),
    "timm/eca-resnet": timm("resnet:ecaresnet26t", **RESNET, stem_width=6),
    "timm/resnest": timm("resnest:resnest14d", **RESNET, stem_width=6, base_width=64),
    "timm/sk-resnet": timm("sknet:skresnet18", **RESNET),
    "timm/res2net": timm("res2net:res2net50_26w_4s", **RESNET),
    "timm/resnetv2": timm(
        "resnetv2:ResNetV2",
        layers=(1, 2),
        channels=(16, 24),
        stem_chs=8,
        configure=lambda m: {"norm_layer": partial(m.GroupNormAct, num_groups=4)},
    ),
    "timm/resnetv2-bn": timm(
        "resnetv2:ResNetV2",
        layers=(1, 2),
        channels=(16, 24),
        stem_chs=8,
        configure=lambda m: {"norm_layer": m.BatchNormAct2d, "conv_layer": m.create_conv2d},
    ),
    "timm/nfnet": timm(
        "nfnet:NormFreeNet",
        configure=lambda m: {
            "cfg": m.NfCfg(
                (1, 1, 2, 1),
                (16, 24, 32, 40),
                stem_chs=8,
                attn_layer="se",
                attn_kwargs={"rd_ratio": 0.5},
                group_size=8,
                num_features=56,
            )
        },
    ),
    "timm/regnet": timm(
        "regnet:RegNet",
        listed=True,
        configure=lambda m: {"cfg": m.RegNetCfg(6, 8, 8.0, 2.0, group_size=4, se_ratio=0.25, stem_width=12)},
    ),
    "timm/tresnet": timm("tresnet:TResNet", layers=[1, 1, 1, 1], width_factor=0.25),
    "timm/byobnet": timm("byobnet:test_byobnet"),
    "timm/repvgg": timm(
        "byobnet:ByobNet",
        configure=lambda m: {
            "cfg": m.ByoModelCfg(
                blocks=tuple(m.ByoBlockCfg(type="rep", d=2, c=c, s=2, gs=0) for c in (12, 16)),
                stem_type="rep",
                stem_chs=8,
            )
        },
    ),
    "timm/mobileone": timm(
        "byobnet:ByobNet",
        configure=lambda m: {
            "cfg": m.ByoModelCfg(
                blocks=tuple(
                    m.ByoBlockCfg(type="one", d=2, c=c, s=2, gs=1, block_kwargs={"num_conv_branches": 2})
                    for c in (12, 16)
                ),
                stem_type="one",
                stem_chs=8,
            )
        },
    ),
    "timm/lambda-resnet": timm(
        "byobnet:ByobNet",
        configure=lambda m: {
            "cfg": m.ByoModelCfg(
                blocks=tuple(m.ByoBlockCfg(type="self_attn", d=2, c=c, s=2, gs=0, br=0.5) for c in (24, 32)),
                stem_chs=8,
                self_attn_layer="lambda",
                self_attn_kwargs={"r": 3, "num_heads": 2, "dim_head": 8},
            )
        },
    ),
    # plain stacks, concatenation
    "timm/vgg": timm("vgg:VGG", cfg=[8, "M", 12, "M", 16, 16, "M"], mlp_ratio=0.01, listed=True),
    "timm/vgg-bn": timm("vgg:VGG", cfg=[8, "M", 12, "M", 16, 16, "M"], mlp_ratio=0.01, norm_layer=nn.BatchNorm2d),
    "timm/densenet": timm("densenet:DenseNet", growth_rate=8, block_config=(2, 3, 2), bn_size=2, listed=True),
    "timm/rdnet": timm(
        "rdnet:RDNet",
        growth_rates=(6, 8),
        num_blocks_list=(2, 2),
        block_type=("Block", "BlockESE"),
        is_downsample_block=(None, True),
        num_init_features=10,
    ),
    "timm/inception": timm("inception_v3:InceptionV3", 75),
    "timm/xception": timm(
        "xception_aligned:XceptionAligned",
        block_cfg=[
            {"in_chs": 64, "out_chs": 16, "stride": 2},
            {"in_chs": 16, "out_chs": 16, "stride": 1},
            {"in_chs": 16, "out_chs": (20, 24, 28), "stride": 2, "no_skip": True, "start_with_relu": False},
        ],
    ),
    "timm/dpn": timm(
        "dpn:DPN",
        64,
        small=True,
        num_init_features=10,
        k_r=16,
        groups=4,
        k_sec=(1, 2, 1, 1),
        inc_sec=(4, 6, 8, 10),
        b=True,
    ),
    "timm/dla": timm(
        "dla:DLA",
        64,
        levels=[1, 1, 1, 2, 2, 1],
        channels=[6, 8, 12, 16, 20, 24],
        configure=lambda m: {"block": m.DlaBasic},
    ),
    "timm/vovnet": timm(
        "vovnet:VovNet",
        cfg={
            "stem_chs": [8, 8, 10],
            "stage_conv_chs": [8, 10, 12, 14],
            "stage_out_chs": [16, 20, 24, 28],
            "layer_per_block": 2,
            "block_per_stage": [1, 1, 2, 1],
            "residual": True,
            "depthwise": False,
            "attn": "ese",
        },
    ),
    "timm/selecsls": timm(
        "selecsls:SelecSls",
        64,
        configure=lambda m: {
            "cfg": {
                "block": m.SelecSlsBlock,
                "features": [(32, 0, 12, 12, True, 2), (12, 12, 12, 20, False, 1)],
                "head": [(20, 28, 3, 2), (28, 24, 1, 1)],
                "num_features": 24,
                "feature_info": [],
            }
        },
    ),
    "timm/cspnet": timm(
        "cspnet:CspNet",
        configure=lambda m: {
            "cfg": m.CspModelCfg(
                stem=m.CspStemCfg(out_chs=8, kernel_size=3),
                stages=m.CspStagesCfg(
                    depth=(1, 2), out_chs=(16, 24), expand_ratio=2.0, bottle_ratio=0.5, cross_linear=True
                ),
            )
        },
    ),
    "timm/hrnet": timm(
        "hrnet:HighResolutionNet",
        64,
        cfg={
            "stem_width": 16,
            "stage1": branch(1, 8),
            "stage2": branch(1, 6, 10),
            "stage3": branch(1, 6, 10, 12),
            "stage4": branch(1, 6, 10, 12, 14),
        },
    ),
    "timm/hgnet": timm(
        "hgnet:HighPerfGpuNet",
        64,
        use_lab=True,
        head_hidden_size=28,
        cfg={
            "stem_type": "v2",
            "stem_chs": [6, 8],
            "stage1": [8, 6, 12, 1, False, False, 3, 2],
            "stage2": [12, 8, 16, 1, True, False, 3, 2],
            "stage3": [16, 10, 20, 2, True, True, 5, 2],
            "stage4": [20, 12, 24, 1, True, True, 5, 2],
        },
    ),
    # depthwise convolutions
    "timm/efficientnet": timm("efficientnet:test_efficientnet", listed=True),
    "timm/efficientnet-gn": timm("efficientnet:test_efficientnet_gn"),
    "timm/efficientnet-evos": timm("efficientnet:test_efficientnet_evos"),
    "timm/mobilenetv2": timm("efficientnet:mobilenetv2_035", listed=True),
    "timm/mobilenetv3": timm("mobilenetv3:mobilenetv3_small_050", listed=True),
    "timm/mixnet": timm("efficientnet:mixnet_s"),
    "timm/lcnet": timm("mobilenetv3:lcnet_035", 64),
    "timm/hardcorenas": timm("hardcorenas:hardcorenas_a"),
    "timm/ghostnet": timm(
        "ghostnet:GhostNet", cfgs=[[[3, 12, 8, 0, 1]], [[3, 16, 12, 0.25, 2], [3, 20, 12, 0.25, 1]]], width=1.0
    ),
    "timm/ghostnetv2": timm(
        "ghostnet:GhostNet",
        cfgs=[[[3, 12, 8, 0, 1]], [[3, 16, 12, 0.25, 2]], [[3, 20, 12, 0.25, 1], [3, 20, 12, 0, 1]]],
        version="v2",
    ),
    "timm/repghost": timm(
        "repghost:RepGhostNet", cfgs=[[[3, 12, 8, 0, 1]], [[3, 16, 12, 0.25, 2], [3, 20, 12, 0.25, 1]]]
    ),
    "timm/rexnet": timm("rexnet:RexNet", width_mult=0.3, depth_mult=0.5),
    "timm/starnet": timm("starnet:StarNet", base_dim=8, depths=[1, 2, 1, 1]),
    "timm/fasternet": timm("fasternet:FasterNet", embed_dim=16, depths=(1, 2), feature_dim=40),
    # blocks after transformers, without attention
    "timm/convnext": timm("convnext:ConvNeXt", 64, **STAGES, listed=True),
    "timm/convnextv2": timm("convnext:ConvNeXt", 64, **STAGES, use_grn=True, ls_init_value=None, conv_mlp=True),
    "timm/inception-next": timm("inception_next:MetaNeXt", 64, **{**STAGES, "dims": (16, 24, 32, 40)}),
    "timm/poolformer": timm(
        "metaformer:MetaFormer",
        64,
        **STAGES,
        downsample_norm=None,
        mlp_act=nn.GELU,
        mlp_bias=True,
        layer_scale_init_values=1e-5,
        res_scale_init_values=None,
        use_mlp_head=False,
        configure=lambda m: {"norm_layers": m.GroupNorm1},
    ),
    "timm/convformer": timm("metaformer:MetaFormer", 64, **STAGES, configure=lambda m: {"token_mixers": m.SepConv}),
    "timm/mambaout": timm("mambaout:MambaOut", 64, **STAGES),
    "timm/focalnet": timm(
        "focalnet:FocalNet",
        embed_dim=8,
        depths=(1, 2),
        focal_levels=(2, 2),
        focal_windows=(3, 3),
        layerscale_value=1e-4,
    ),
    "timm/convmixer": timm("convmixer:ConvMixer", dim=16, depth=2, kernel_size=5, patch_size=4),
    "timm/mixer": timm("mlp_mixer:MlpMixer", **MIXER, listed=True),
    "timm/gmixer": timm(
        "mlp_mixer:MlpMixer",
        **MIXER,
        act_layer=nn.SiLU,
        mlp_ratio=(1.0, 4.0),
        configure=lambda m: {"mlp_layer": m.GluMlp},
    ),
    "timm/resmlp": timm(
        "mlp_mixer:MlpMixer",
        **MIXER,
        mlp_ratio=3,
        configure=lambda m: {"block_layer": m.ResBlock, "norm_layer": m.Affine},
    ),
    "timm/gmlp": timm(
        "mlp_mixer:MlpMixer",
        **MIXER,
        mlp_ratio=3,
        configure=lambda m: {"block_layer": m.SpatialGatingBlock, "mlp_layer": m.GatedMlp},
    ),
    "timm/sequencer": timm(
        "sequencer:Sequencer2d",
        img_size=32,
        layers=(1, 1),
        patch_sizes=(7, 2),
        embed_dims=(16, 24),
        hidden_sizes=(5, 6),
        mlp_ratios=(3.0, 3.0),
    ),
}
