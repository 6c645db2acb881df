"""Wiring: the spaces of a network, found by tracing, and the maps that leave its function unchanged."""

from interbasin.wiring.account import Carried, TensorAccount
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Reason, Role, Space
from interbasin.wiring.carry import carry, carry_with_account
from interbasin.wiring.wire import wire
from interbasin.wiring.wiring import TensorWiring, Wiring

__all__ = [
    "Alignment",
    "Carried",
    "Group",
    "Reason",
    "Role",
    "Space",
    "TensorAccount",
    "TensorWiring",
    "Wiring",
    "carry",
    "carry_with_account",
    "wire",
]
