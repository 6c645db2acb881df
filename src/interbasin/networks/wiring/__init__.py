"""Wiring: the spaces of a network, found by tracing, and the maps that leave its function unchanged."""

from interbasin.networks.wiring.account import Carried, TensorAccount
from interbasin.networks.wiring.alignment import Alignment
from interbasin.networks.wiring.carrying import carry, carry_with_account
from interbasin.networks.wiring.finding import wire
from interbasin.networks.wiring.groups import Group
from interbasin.networks.wiring.spaces import Reason, Role, Space
from interbasin.networks.wiring.wiring import TensorWiring, Wiring

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
