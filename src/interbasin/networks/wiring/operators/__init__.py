"""What each operator demands of the axes it touches: one small function an operator, registered in one table.

To teach a new operator, write a function beside its kin and decorate it with `rule`; see CONTRIBUTING.
"""

from interbasin.networks.wiring.operators import (  # noqa: F401  (importing registers the rules)
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    norm,
    reduction,
    slicing,
)
