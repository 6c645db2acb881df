"""Whether to translate an index of vectors, found out before it is done.

``inputs`` holds what is given and cross-fits, ``measures`` searches in every way and scores what is found, ``verdict``
says in words what the intervals allow to say, ``job`` puts it together and ``result`` is what it returns.
"""

from interbasin.jobs.translate.audit.job import audit, pool_rows
from interbasin.jobs.translate.audit.result import Audit, Way
from interbasin.jobs.translate.audit.verdict import Verdict

__all__ = ["Audit", "Verdict", "Way", "audit", "pool_rows"]
