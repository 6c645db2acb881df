"""How alike two texts are: the measure that summaries and other written answers are scored by."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interbasin.errors import DataError


def rouge_l(text: str, reference: str) -> float:
    r"""ROUGE-L of a text: the F-measure of the longest sequence of words that both have in the same order [lin:04].

    With :math:`l` the length of that sequence, :math:`l / |\mathrm{text}|` is the precision,
    :math:`l / |\mathrm{reference}|` the recall, and their harmonic mean :math:`2 l / (|\mathrm{text}| +
    |\mathrm{reference}|)`: 1 for the same words in the same order, 0 for texts without a common word. Recall weighs as
    much as precision, so that the two texts may change places. Words are runs of letters, digits and underscores,
    without regard to case; nothing is stemmed. For many texts take the mean.

    Args:
        text: What was written.
        reference: What it should be.

    Raises:
        DataError: if one of them is no string.

    Example:
        >>> rouge_l("The dog runs in a park.", "A dog runs.")
        0.4444444444444444
    """
    for name, value in (("text", text), ("reference", reference)):
        if not isinstance(value, str):
            raise DataError(f"rouge_l compares two strings, found a {type(value).__name__} as {name}; join its words.")
    ours, theirs = (re.findall(r"\w+", each.casefold()) for each in (text, reference))
    if not ours and not theirs:
        return 1.0
    return 2 * common_length(ours, theirs) / (len(ours) + len(theirs))


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest sequence that both hold in the same order, with gaps or without.

    Example:
        >>> common_length("axbycz", "abc")
        3
    """
    lengths = [0] * (len(b) + 1)  # of what has been seen of ``a``, with each beginning of ``b``
    for item in a:
        before = 0
        for place, other in enumerate(b, 1):
            above = lengths[place]
            lengths[place] = before + 1 if item == other else max(above, lengths[place - 1])
            before = above
    return lengths[-1]
