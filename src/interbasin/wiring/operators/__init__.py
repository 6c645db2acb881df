"""What each operator demands of the axes it touches: one small function an operator, registered in one table.

To teach a new operator, write a function beside its kin and decorate it with `rule`; see CONTRIBUTING.
"""

# Importing them registers the rules.
from interbasin.wiring.operators import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    norm,
    recurrent,
    reduction,
    scattering,
    slicing,
    spectra,
)

__all__ = [
    "attention",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "layout",
    "norm",
    "recurrent",
    "reduction",
    "scattering",
    "slicing",
    "spectra",
]
