"""What the axes of tensors are made of, while a trace is followed (``terms``, ``axes``) and afterwards (``spaces``)."""

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Each, Grid, In, Reason, Role, Row, Space, Still

__all__ = ["Each", "Grid", "Group", "In", "Reason", "Role", "Row", "Space", "Still"]
