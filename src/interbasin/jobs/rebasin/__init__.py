"""Network A in the coordinates of network B, by permutations or orthogonal maps.

The road, as `rebasin` in ``job`` walks it:

1. wire the networks, and list the free spaces, each with the group that its map is sought in (`free_spaces`);
2. a method from the table in ``methods`` finds one map per space: a function from a `Task` to a `Match` (``task``);
3. carry the source through the maps, measure what that changed, and return a `Rebasin` (``result``).

The methods, by subject: ``weights``, ``activations``, ``stiefel`` (descent) and ``straight_through`` (by the loss). All
pose one problem: two sets of tensors whose axes lie in the same spaces. `interbasin.fit.matching` solves it per space.
``many`` aligns more than two networks. A new method is a function in a file of its own and a row in ``methods``.
"""

from interbasin.jobs.rebasin.job import rebasin
from interbasin.jobs.rebasin.many import rebasin_many
from interbasin.jobs.rebasin.methods import METHODS
from interbasin.jobs.rebasin.result import JointRebasin, Rebasin

__all__ = ["METHODS", "JointRebasin", "Rebasin", "rebasin", "rebasin_many"]
