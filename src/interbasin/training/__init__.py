"""Fitting tensors to batches by gradient descent, in one process or several, with checkpoints to go on from."""

from interbasin.training.checkpoint import Checkpoint
from interbasin.training.loop import Training, train
from interbasin.training.rows import ShuffledRows

__all__ = ["Checkpoint", "ShuffledRows", "Training", "train"]
