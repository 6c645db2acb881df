"""The bound of RECRAFT [tran:26] on the target's loss, and its terms; for any network that was fine-tuned elsewhere."""

from interbasin.evaluate.transfer.feature_alignment import (
    lies_among,
    mean_distance,
    plan_pairs,
    sampling_floor,
    wasserstein,
)
from interbasin.evaluate.transfer.label_distortion import Distortion, conditional_entropy, distortion, joint_shares
from interbasin.evaluate.transfer.target_fitting import TransferBound, measure_bound

__all__ = [
    "Distortion",
    "TransferBound",
    "conditional_entropy",
    "distortion",
    "joint_shares",
    "lies_among",
    "mean_distance",
    "measure_bound",
    "plan_pairs",
    "sampling_floor",
    "wasserstein",
]
