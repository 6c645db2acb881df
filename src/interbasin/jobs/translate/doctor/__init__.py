"""What is wrong with a table of vectors, found before they are translated or searched.

``job`` reads the rows once, batch by batch; ``findings`` gathers what is wrong with them; ``mixture`` says whether two
models share the table.
"""

from interbasin.jobs.translate.doctor.findings import Finding
from interbasin.jobs.translate.doctor.job import Checkup, doctor

__all__ = ["Checkup", "Finding", "doctor"]
