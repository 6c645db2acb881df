"""Networks of timm that attend: vision transformers, windows, pyramids, hybrids."""

from __future__ import annotations

from tests.architectures.architecture import Architecture
from tests.architectures.from_timm import timm

PATCHES = {"img_size": 32, "patch_size": 8}
VIT = {**PATCHES, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 1.75}
WINDOWS = {
    "img_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": (2, 2),
    "num_heads": (2, 4),
    "window_size": 4,
    "mlp_ratio": 1.75,
}
PYRAMID = {"depths": (1, 1, 2, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4)}

ARCHITECTURES: dict[str, Architecture] = {
    # one width throughout
    "timm/vit": timm("vision_transformer:VisionTransformer", **VIT, listed=True),
    "timm/vit-average": timm(
        "vision_transformer:VisionTransformer", **VIT, global_pool="avg", class_token=False, qkv_bias=False
    ),
    "timm/vit-registers": timm(
        "vision_transformer:VisionTransformer", **VIT, reg_tokens=3, init_values=1e-5, qk_norm=True, pre_norm=True
    ),
    "timm/vit-map": timm("vision_transformer:VisionTransformer", **VIT, global_pool="map", class_token=False),
    "timm/vit-swiglu": timm(
        "vision_transformer:VisionTransformer",
        **VIT,
        configure=lambda m: {"mlp_layer": m.SwiGLUPacked, "norm_layer": m.RmsNorm},
    ),
    "timm/vit-parallel": timm(
        "vision_transformer:VisionTransformer", **VIT, configure=lambda m: {"block_fn": m.ParallelScalingBlock}
    ),
    "timm/vit-parallel-things": timm(
        "vision_transformer:VisionTransformer", **VIT, configure=lambda m: {"block_fn": m.ParallelThingsBlock}
    ),
    "timm/vit-post-norm": timm(
        "vision_transformer:VisionTransformer", **VIT, configure=lambda m: {"block_fn": m.ResPostBlock}
    ),
    "timm/vit-relpos": timm("vision_transformer_relpos:VisionTransformerRelPos", **VIT, class_token=True),
    "timm/vit-sam": timm(
        "vision_transformer_sam:VisionTransformerSAM",
        **VIT,
        use_rel_pos=True,
        window_size=3,
        global_attn_indexes=(1,),
        neck_chans=20,
    ),
    "timm/deit": timm("deit:VisionTransformerDistilled", **VIT, listed=True),
    "timm/deit3": timm(
        "vision_transformer:VisionTransformer", **VIT, no_embed_class=True, init_values=1e-6, listed=True
    ),
    "timm/eva": timm(
        "eva:Eva", **VIT, swiglu_mlp=True, scale_mlp=True, use_rot_pos_emb=True, qkv_fused=False, init_values=1e-4
    ),
    "timm/beit": timm("beit:Beit", **VIT, use_rel_pos_bias=True, use_abs_pos_emb=False, init_values=0.1),
    "timm/beit-shared": timm("beit:Beit", **VIT, use_shared_rel_pos_bias=True, init_values=None),
    "timm/cait": timm("cait:Cait", **VIT, depth_token_only=1, mlp_ratio_token_only=1.25),
    "timm/xcit": timm("xcit:Xcit", **VIT, cls_attn_layers=1),
    "timm/tnt": timm(
        "tnt:TNT", **PATCHES, embed_dim=32, inner_dim=12, depth=2, num_heads_inner=2, num_heads_outer=4, mlp_ratio=1.75
    ),
    "timm/crossvit": timm(
        "crossvit:CrossVit",
        img_size=32,
        img_scale=(1.0, 1.0),
        patch_size=(4, 8),
        embed_dim=(16, 24),
        depth=((1, 2, 1),),
        num_heads=(2, 4),
        mlp_ratio=(2.0, 2.0, 1.5),
    ),
    "timm/naflexvit": timm(
        "naflexvit:NaFlexVit",
        configure=lambda m: {
            "cfg": m.NaFlexVitCfg(
                patch_size=8,
                embed_dim=32,
                depth=2,
                num_heads=4,
                mlp_ratio=1.75,
                reg_tokens=2,
                fc_norm=True,
                init_values=1e-5,
                global_pool="avg",
                class_token=False,
            )
        },
    ),
    # windows
    "timm/swin": timm("swin_transformer:SwinTransformer", **WINDOWS, listed=True),
    "timm/swinv2": timm("swin_transformer_v2:SwinTransformerV2", **WINDOWS),
    "timm/swinv2-cr": timm("swin_transformer_v2_cr:SwinTransformerV2Cr", **WINDOWS),
    "timm/maxvit": timm(
        "maxxvit:MaxxVit",
        64,
        img_size=64,
        configure=lambda m: {
            "cfg": m.MaxxVitCfg(
                embed_dim=(12, 16),
                depths=(1, 1),
                block_type=("M", "M"),
                stem_width=8,
                transformer_cfg=m.MaxxVitTransformerCfg(dim_head=4, window_size=4, rel_pos_type="bias_tf"),
            )
        },
    ),
    "timm/coatnet": timm(
        "maxxvit:MaxxVit",
        img_size=32,
        configure=lambda m: {
            "cfg": m.MaxxVitCfg(
                embed_dim=(8, 12, 16),
                depths=(1, 1, 2),
                block_type=("C", "T", "T"),
                stem_width=(6, 8),
                transformer_cfg=m.MaxxVitTransformerCfg(dim_head=4),
            )
        },
    ),
    "timm/gcvit": timm(
        "gcvit:GlobalContextVit",
        img_size=64,
        size=64,
        embed_dim=8,
        depths=(2, 2),
        num_heads=(2, 4),
        window_size=(4, 4),
        mlp_ratio=1.75,
        layer_scale=1e-5,
    ),
    "timm/davit": timm("davit:DaVit", depths=(1, 1), embed_dims=(16, 24), num_heads=(2, 4), window_size=4),
    "timm/tiny-vit": timm(
        "tiny_vit:TinyVit", embed_dims=(8, 16, 24), depths=(1, 1, 2), num_heads=(2, 2, 4), window_sizes=(4, 4, 4)
    ),
    "timm/nest": timm(
        "nest:Nest",
        img_size=32,
        patch_size=2,
        num_levels=2,
        embed_dims=(16, 24),
        num_heads=(2, 4),
        depths=(1, 2),
        mlp_ratio=1.75,
    ),
    "timm/hiera": timm(
        "hiera:Hiera",
        img_size=(32, 32),
        embed_dim=16,
        num_heads=1,
        stages=(1, 2),
        q_pool=1,
        mask_unit_size=(2, 2),
        mask_unit_attn=(True, False),
        mlp_ratio=1.75,
    ),
    "timm/hieradet": timm(
        "hieradet_sam2:HieraDet",
        64,
        embed_dim=16,
        num_heads=1,
        stages=(1, 2),
        q_pool=1,
        window_spec=(4, 4),
        global_att_blocks=(2,),
    ),
    # pyramids
    "timm/pvt": timm(
        "pvt_v2:PyramidVisionTransformerV2", 64, **PYRAMID, sr_ratios=(4, 2, 2, 1), mlp_ratios=(2, 2, 2, 2)
    ),
    "timm/twins-pcpvt": timm(
        "twins:Twins", 64, **PYRAMID, img_size=64, sr_ratios=(4, 2, 2, 1), mlp_ratios=(2, 2, 2, 2)
    ),
    "timm/twins-svt": timm(
        "twins:Twins",
        64,
        **{**PYRAMID, "depths": (2, 2, 2, 2)},
        img_size=64,
        wss=(4, 4, 2, 2),
        sr_ratios=(4, 2, 2, 1),
        mlp_ratios=(2, 2, 2, 2),
    ),
    "timm/pit": timm(
        "pit:PoolingVisionTransformer",
        img_size=32,
        patch_size=8,
        stride=4,
        base_dims=(8, 8),
        depth=(1, 2),
        heads=(2, 4),
        mlp_ratio=2,
    ),
    "timm/mvitv2": timm(
        "mvitv2:MultiScaleVit",
        64,
        img_size=(64, 64),
        configure=lambda m: {
            "cfg": m.MultiScaleVitCfg(
                depths=(1, 2), embed_dim=16, num_heads=1, mlp_ratio=1.75, stride_q=((1, 1), (2, 2))
            )
        },
    ),
    "timm/volo": timm(
        "volo:VOLO",
        64,
        img_size=64,
        layers=(1, 1),
        embed_dims=(16, 24),
        num_heads=(2, 4),
        stem_hidden_dim=8,
        downsamples=(True, False),
        outlook_attention=(True, False),
        post_layers=("ca",),
    ),
    "timm/coat": timm(
        "coat:CoaT",
        64,
        img_size=64,
        patch_size=4,
        embed_dims=(16, 24, 24, 24),
        serial_depths=(1, 1, 1, 1),
        parallel_depth=1,
        num_heads=8,
        mlp_ratios=(2, 2, 2, 2),
    ),
    # hybrids of convolution and attention
    "timm/levit": timm(
        "levit:Levit", img_size=64, size=64, embed_dim=(16, 24), key_dim=6, depth=(1, 2), num_heads=(2, 4)
    ),
    "timm/visformer": timm(
        "visformer:Visformer",
        64,
        img_size=64,
        init_channels=8,
        embed_dim=32,
        depth=(1, 1, 1),
        num_heads=4,
        mlp_ratio=2.0,
        group=4,
        attn_stage="011",
        spatial_conv="100",
    ),
    "timm/edgenext": timm("edgenext:EdgeNeXt", 64, dims=(8, 16, 24, 32), depths=(1, 2, 2, 2), heads=(2, 2, 4, 4)),
    "timm/fastvit": timm(
        "fastvit:FastVit",
        64,
        layers=(1, 1, 1, 1),
        embed_dims=(8, 16, 32, 64),
        token_mixers=("repmixer", "repmixer", "repmixer", "attention"),
        mlp_ratios=(2, 2, 2, 2),
    ),
    "timm/mobilevit": timm(
        "byobnet:ByobNet",
        configure=lambda m: {
            "cfg": m.ByoModelCfg(
                blocks=(
                    m.ByoBlockCfg(
                        type="bottle",
                        d=1,
                        c=12,
                        s=2,
                        gs=1,
                        br=2.0,
                        block_kwargs={"bottle_in": True, "linear_out": True},
                    ),
                    m.ByoBlockCfg(
                        type="mobilevit",
                        d=1,
                        c=16,
                        s=1,
                        block_kwargs={"transformer_dim": 20, "transformer_depth": 2, "patch_size": 2, "num_heads": 4},
                    ),
                ),
                stem_chs=8,
                stem_type="3x3",
                stem_pool="",
                downsample="",
                act_layer="silu",
                num_features=28,
            )
        },
    ),
    "timm/mobilevitv2": timm(
        "byobnet:ByobNet",
        configure=lambda m: {
            "cfg": m.ByoModelCfg(
                blocks=(
                    m.ByoBlockCfg(
                        type="bottle",
                        d=1,
                        c=12,
                        s=2,
                        gs=1,
                        br=2.0,
                        block_kwargs={"bottle_in": True, "linear_out": True},
                    ),
                    m.ByoBlockCfg(
                        type="mobilevit2",
                        d=1,
                        c=16,
                        s=1,
                        br=0.5,
                        gs=1,
                        block_kwargs={"transformer_depth": 2, "patch_size": 2},
                    ),
                ),
                stem_chs=8,
                stem_type="3x3",
                stem_pool="",
                downsample="",
                act_layer="silu",
            )
        },
    ),
    "timm/repvit": timm("repvit:RepVit", img_size=32, embed_dim=(8, 12, 16), depth=(2, 2, 2)),
    "timm/caformer": timm(
        "metaformer:MetaFormer",
        64,
        depths=(1, 1, 1, 2),
        dims=(8, 16, 32, 64),
        configure=lambda m: {
            "token_mixers": [m.SepConv, m.SepConv, m.Attention, m.Attention],
            "norm_layers": [m.LayerNorm2dNoBias] * 2 + [m.LayerNormNoBias] * 2,
        },
    ),
    "timm/efficientformer": timm(
        "efficientformer:EfficientFormer", 224, depths=(1, 1, 1, 2), embed_dims=(8, 12, 16, 24), num_vit=1
    ),
    "timm/efficientformerv2": timm(
        "efficientformer_v2:EfficientFormerV2",
        64,
        img_size=64,
        depths=(1, 1, 2, 2),
        embed_dims=(8, 12, 16, 24),
        num_vit=1,
        mlp_ratios=2,
    ),
    "timm/efficientvit-mit": timm(
        "efficientvit_mit:EfficientVit",
        64,
        widths=(4, 8, 16, 24, 32),
        depths=(1, 1, 1, 1, 2),
        head_dim=8,
        head_widths=(40, 48),
    ),
    "timm/efficientvit-msra": timm(
        "efficientvit_msra:EfficientVitMsra",
        64,
        img_size=64,
        embed_dim=(16, 24, 32),
        key_dim=(6, 6, 6),
        depth=(1, 1, 2),
        num_heads=(2, 2, 4),
        window_size=(4, 4, 4),
    ),
    "timm/efficientvim": timm(
        "efficientvim:EfficientViM", 64, embed_dim=(16, 24, 32), depths=(1, 1, 1), state_dim=(7, 6, 5), mlp_ratio=2.0
    ),
    "timm/shvit": timm(
        "shvit:SHViT", 64, embed_dim=(16, 24, 32), depth=(1, 1, 2), partial_dim=(6, 8, 10), types=("i", "s", "s")
    ),
    "timm/swiftformer": timm(
        "swiftformer:SwiftFormer", 64, layers=[1, 1, 1, 2], embed_dims=[8, 12, 16, 24], mlp_ratios=2
    ),
}
