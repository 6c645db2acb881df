"""Whether to translate an index of vectors, found out before it is done.

``material`` holds what is given, ``pairing`` doubts pairs that are none, ``unseen`` keeps documents from being judged
by what was fitted on them, ``searches`` runs every way of searching over the whole index, ``pool`` knows the new
model's vectors of all documents or of the few that matter, ``figures`` measures, ``curve`` asks how many pairs are
enough, ``slices`` where it is worst, ``verdict`` says in words what the intervals allow to say, ``result`` is what
comes of it.
"""

from interbasin.jobs.translate.auditing.job import audit, pool_rows
from interbasin.jobs.translate.auditing.result import Audit, Way
from interbasin.jobs.translate.auditing.verdict import Verdict

__all__ = ["Audit", "Verdict", "Way", "audit", "pool_rows"]
