"""What was seen in two spaces: streaming moments, and the similarities that can be computed from them."""

from interbasin.statistics.layerwise import LayerwiseMoments
from interbasin.statistics.moments import PairedMoments
from interbasin.statistics.similarity import (
    canonical_correlations,
    explained_variance,
    linear_cka,
    mean_cca,
    mean_cosine,
    procrustes_distance,
    pwcca,
    residual_energy,
    similarities,
)

__all__ = [
    "LayerwiseMoments",
    "PairedMoments",
    "canonical_correlations",
    "explained_variance",
    "linear_cka",
    "mean_cca",
    "mean_cosine",
    "procrustes_distance",
    "pwcca",
    "residual_energy",
    "similarities",
]
