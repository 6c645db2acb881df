"""The fine-tune or LoRA of one network, given to another without training.

The road, as `transport` in ``job`` walks it:

1. read the fine-tune as an `Update` (``update``; ``reading`` and ``adapter`` know PEFT), and relate the two bases
   (``bases``): their wirings, and which part of one belongs to which of the other;
2. a method from the table in ``methods`` makes an update for the target of it: a function from a `Task` to a
   `Transported` (``task``). Theseus finds a map per space (``maps``, ``rules``, ``heads``) and carries tensors through
   them (``carrying``); the regression finds the target's layers (``layers``) and what they aim at (``goals``), and fits
   them one by one (``regression``, ``ridge``);
3. ``choosing`` takes the method and alpha that explain most of tuned A's effect on held-out inputs (``judging``), the
   ``verdict`` says what to do, and a `Transport` (``result``) holds it all.

``compared`` lists what methods are compared with. ``prepare`` keeps statistics and maps for many fine-tunes of one
base, ``vectors`` carries steering vectors and probes, and ``warm_start`` trains on from where a transport ends.
"""

from interbasin.jobs.transport.carrying import Moved
from interbasin.jobs.transport.job import transport
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.planning import Plan, plan_transport
from interbasin.jobs.transport.prepare import PreparedTransport, prepare_transport
from interbasin.jobs.transport.result import Transport
from interbasin.jobs.transport.update import Update
from interbasin.jobs.transport.vectors import carry_probe, carry_vector
from interbasin.jobs.transport.warm_start import Finetuned, finetune

__all__ = [
    "METHODS",
    "Finetuned",
    "Moved",
    "Plan",
    "PreparedTransport",
    "Transport",
    "Update",
    "carry_probe",
    "carry_vector",
    "finetune",
    "plan_transport",
    "prepare_transport",
    "transport",
]
