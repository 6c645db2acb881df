r"""The arc between two directions: how much of each end a point between them holds, in numbers, without torch.

With :math:`\theta` the angle between :math:`a` and :math:`b`, the point at :math:`t` is
:math:`\frac{\sin((1 - t)\theta)}{\sin\theta} a + \frac{\sin(t\theta)}{\sin\theta} b` [shoemake:85].
"""

from __future__ import annotations

import math

# Cosines beyond this count as parallel or opposite: there sin(theta) has lost its digits in half precision.
PARALLEL = 0.9995


def shares_on_arc(cosine: float, t: float) -> tuple[float, float]:
    """How much of each end the point at ``t`` holds; of the line between them, where there is no arc, or no single one.

    Args:
        cosine: Of the angle between the ends.
        t: 0 is the first end, 1 the second.

    Example:
        >>> [round(share, 4) for share in shares_on_arc(0.0, 1 / 3)]  # cosine and sine of 30 degrees
        [0.866, 0.5]
        >>> shares_on_arc(-1.0, 0.25)
        (0.75, 0.25)
    """
    if not abs(cosine) <= PARALLEL:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
