"""The fine-tune or LoRA of one network, given to another without training.

The road, as `transport` in ``job`` walks it:

1. read the fine-tune, or several, as one `Update` (``updates/``), and relate the two bases (``bases``): their wirings,
   and which part of one belongs to which of the other; ``blocks`` makes a source deeper;
2. a method from the table in ``methods`` makes an update for the target of it: a function from a `Task` to a
   `Transported` (``task``). ``theseus/`` carries the update through a map per space; ``regression/`` fits the target's
   layers, one after the other, to what the tuned source shows (``rows``);
3. ``choice`` takes the method and alpha that explain most of tuned A's effect on held-out inputs (``judge``), the
   ``verdict`` says what to do, and a `Transport` (``result``) holds it all: the ``figures``, the ``front`` over the
   weights of generic inputs. The ``journal`` keeps what takes long, for a run that goes on after an interrupt.

``comparison/`` holds what methods are compared with. ``plan`` says beforehand what would happen, ``prepare`` keeps
statistics and maps for many fine-tunes of one base, ``steering`` carries steering vectors and probes, and
``warm_start`` trains on from where a transport ends.
"""

from interbasin.jobs.transport.job import transport
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.plan import Plan, plan_transport
from interbasin.jobs.transport.prepare import PreparedTransport, prepare_transport
from interbasin.jobs.transport.result import Transport
from interbasin.jobs.transport.steering import carry_probe, carry_vector
from interbasin.jobs.transport.theseus.carrier import Moved
from interbasin.jobs.transport.theseus.on_disk import transport_on_disk
from interbasin.jobs.transport.updates.update import Update
from interbasin.jobs.transport.warm_start import Finetuned, WarmStart, finetune, train_on

__all__ = [
    "METHODS",
    "Finetuned",
    "Moved",
    "Plan",
    "PreparedTransport",
    "Transport",
    "Update",
    "WarmStart",
    "carry_probe",
    "carry_vector",
    "finetune",
    "plan_transport",
    "prepare_transport",
    "train_on",
    "transport",
    "transport_on_disk",
]
