"""What each operator demands of the axes it touches: one small function per operator, registered in one table.

To teach a new operator, write a function beside its kin and decorate it with `rule`; see CONTRIBUTING.
"""

# Importing them registers the rules.
from interbasin.wiring.operators import (
    contraction,
    convolution,
    elementwise,
    indexing,
    layout,
    recurrent,
    reduction,
    slicing,
)

__all__ = ["contraction", "convolution", "elementwise", "indexing", "layout", "recurrent", "reduction", "slicing"]
