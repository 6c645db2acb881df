"""What a method of transport is compared with: ``table`` lists the rows, ``measure`` fills them.

``baselines`` need neither labels nor gradients, ``controls`` do, ``distillation`` needs gradients alone;
``written_in`` is tuned A, embedded exactly.
"""

from interbasin.jobs.transport.comparison.measure import compare_methods, rows_to_compare
from interbasin.jobs.transport.comparison.table import COMPARED

__all__ = ["COMPARED", "compare_methods", "rows_to_compare"]
