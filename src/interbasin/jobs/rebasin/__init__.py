"""Network A in the coordinates of network B, by permutations or orthogonal maps.

``pieces`` cut two networks into arrays whose every axis lies in one space; ``elements`` hold the maps of a space and
find the best one; ``problem`` is the match as data; ``descent`` solves it. On these stand the methods: ``weights``,
``activations``, ``stiefel``, ``straight_through``. ``job`` is what users call, and ``many`` for more than two networks.
"""

from interbasin.jobs.rebasin.job import Rebasin, rebasin
from interbasin.jobs.rebasin.many import Together, rebasin_many
from interbasin.jobs.rebasin.methods import METHODS, Method

__all__ = ["METHODS", "Method", "Rebasin", "Together", "rebasin", "rebasin_many"]
