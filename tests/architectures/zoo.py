"""The architectures on which the wiring of networks is tested: small, with random weights, from configurations alone.

Sizes that mean different things differ wherever the architecture allows it (width, hidden width, heads, vocabulary,
tokens), so that a mistake cannot hide behind two that are equal by chance. Nothing is imported from timm, torchvision
or transformers until an entry is called::

    network, inputs = ARCHITECTURES["timm/resnet"](seed=0)
    outputs = ARCHITECTURES["timm/resnet"].run(network, inputs)
"""

from __future__ import annotations

from tests.architectures import (
    zoo_decoders,
    zoo_encoders,
    zoo_senses,
    zoo_seq2seq,
    zoo_timm_attention,
    zoo_timm_convolutions,
    zoo_torch,
    zoo_torchvision,
)
from tests.architectures.architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    **zoo_torch.ARCHITECTURES,
    **zoo_torchvision.ARCHITECTURES,
    **zoo_timm_convolutions.ARCHITECTURES,
    **zoo_timm_attention.ARCHITECTURES,
    **zoo_encoders.ARCHITECTURES,
    **zoo_decoders.ARCHITECTURES,
    **zoo_seq2seq.ARCHITECTURES,
    **zoo_senses.ARCHITECTURES,
}
