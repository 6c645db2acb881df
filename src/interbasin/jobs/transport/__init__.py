"""Transport: the fine-tune or LoRA of one network, given to another without training."""

from interbasin.jobs.transport.carrying import Moved
from interbasin.jobs.transport.job import transport
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.planning import Plan, plan_transport
from interbasin.jobs.transport.result import Transport
from interbasin.jobs.transport.update import Update

__all__ = ["METHODS", "Moved", "Plan", "Transport", "Update", "plan_transport", "transport"]
