"""Wiring: the spaces of a network, found by tracing, and the maps that leave its function unchanged."""

from interbasin.networks.wiring.alignment import Alignment
from interbasin.networks.wiring.carrying import carry
from interbasin.networks.wiring.finding import wire
from interbasin.networks.wiring.groups import Group
from interbasin.networks.wiring.spaces import Reason, Role, Space
from interbasin.networks.wiring.wiring import TensorWiring, Wiring

__all__ = ["Alignment", "Group", "Reason", "Role", "Space", "TensorWiring", "Wiring", "carry", "wire"]
