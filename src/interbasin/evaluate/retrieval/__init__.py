"""How well vectors find what they should: exact search, the share of right documents it brings, and how sure that is.

``search`` finds the nearest documents, ``reranking`` puts them in order by other vectors, ``measures`` compares them
with labels or with another search, one number per query, ``bootstrap`` says how far such numbers can be trusted.
"""

from interbasin.evaluate.retrieval.bootstrap import Bootstrap, Interval
from interbasin.evaluate.retrieval.measures import Labels, ndcg, overlap, recall, reciprocal_rank
from interbasin.evaluate.retrieval.search import METRICS, Nearest, Ranking, nearest, reranked, similarity

__all__ = [
    "METRICS",
    "Bootstrap",
    "Interval",
    "Labels",
    "Nearest",
    "Ranking",
    "ndcg",
    "nearest",
    "overlap",
    "recall",
    "reciprocal_rank",
    "reranked",
    "similarity",
]
