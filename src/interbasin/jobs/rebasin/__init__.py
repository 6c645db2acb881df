"""Network A in the coordinates of network B, by permutations or orthogonal maps.

The road: ``job`` checks the request, wires the networks and decides how far maps may ``reach``; a method of ``methods``
finds one map per space; the source is carried through them and measured; ``result`` is what comes back and is saved.
The methods are functions from a `Task` to a `Match` (``task``), by subject: ``weights``, ``activations``, ``stiefel``,
``straight_through``. The map of a single space is found in `interbasin.fit.matching`. ``many`` aligns more than two
networks, and ``finetune`` repairs what approximate maps cost.
"""

from interbasin.jobs.rebasin.job import rebasin
from interbasin.jobs.rebasin.many import rebasin_many
from interbasin.jobs.rebasin.methods import METHODS
from interbasin.jobs.rebasin.result import JointRebasin, Rebasin

__all__ = ["METHODS", "JointRebasin", "Rebasin", "rebasin", "rebasin_many"]
