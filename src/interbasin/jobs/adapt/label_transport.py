r"""Stage 2 as the paper has it: target labels by way of the source's.

:math:`p(z' \mid u) = \sum_z p_s(z \mid u)\,\Lambda_u(z' \mid z)` (equation 23 of RECRAFT [tran:26]): the source's head
says which of its labels an input looks like, and a learned table, or a small network over the features, says what each
of these means for the target. The feature map stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.transfer.label_distortion import joint_shares, transport_table
from interbasin.jobs.adapt.source_head import SourceHead

STEPS, RATE, DECAY = 200, 3e-2, 1e-3


class LabelTransport(nn.Module):
    """Features -> logarithms of the probabilities of the target's labels.

    Args:
        head: Of the source; frozen.
        labels: How many the target has.
        width: Of a hidden layer over the features that bends the table; 0 for one table for all inputs.
    """

    def __init__(self, head: SourceHead, labels: int, width: int = 0) -> None:
        super().__init__()
        self.head = head.linear
        weight = head.linear.weight
        self.table = nn.Parameter(weight.new_zeros(head.linear.out_features, labels))
        self.bend: nn.Module | None = None
        if width:
            last = nn.Linear(width, self.table.numel())
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.bend = nn.Sequential(nn.Linear(head.linear.in_features, width), nn.Tanh(), last).to(weight)

    def forward(self, features: Tensor) -> Tensor:
        shares = self.head(features).log_softmax(-1)
        table = self.table if self.bend is None else self.table + self.bend(features).unflatten(-1, self.table.shape)
        logs: Tensor = torch.logsumexp(shares[..., None] + table.log_softmax(-1), -2)
        return logs

    @classmethod
    @torch.inference_mode(False)
    def fit(
        cls,
        head: SourceHead,
        features: Tensor,
        labels: Tensor,
        count: int,
        *,
        width: int = 0,
        steps: int = STEPS,
        seed: int = 0,
    ) -> LabelTransport:
        """The table that explains labels best, begun with what pseudo-labels and labels have in common (eq. 24, 25).

        Args:
            head: Of the source.
            features: Of labelled target samples, scaled as the head has them.
            labels: One for each, whole numbers below ``count``.
            count: How many labels the target has.
            width: See the class.
            steps: Of Adam.
            seed: Of the hidden layer.

        Raises:
            ShapeError, DataError: if there is not one label below ``count`` for each sample.
        """
        _require_labels(features, labels, count)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cls(head, count, width)
        features, labels = features.detach().to(model.table), labels.to(model.table.device)
        with torch.no_grad():
            joint = joint_shares(head.probabilities(features).double(), labels, count)
            model.table.copy_(transport_table(joint, 1.0, len(labels)).log())
        start = model.table.detach().clone()
        free = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimiser = torch.optim.Adam(free, lr=RATE)
        for _ in range(steps):
            loss = nn.functional.nll_loss(model(features), labels) + DECAY * (model.table - start).square().mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return model.eval()


def _require_labels(features: Tensor, labels: Tensor, count: int) -> None:
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels) or not len(labels):
        raise ShapeError(
            f"Features of shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)} do not pair; give a "
            "row and a label for each sample."
        )
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= count:
        raise DataError(
            f"Labels are whole numbers from 0 to {count - 1}, found {labels.min().item()} to {labels.max().item()}; "
            "make classes of others first."
        )
