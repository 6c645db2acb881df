"""What is wrong with a table of vectors, found before they are translated or searched.

``checkup`` reads the rows once, a batch at a time, and gathers what is found; ``lattice`` tells numbers that were
rounded to few levels; ``mixture`` tells whether two models share the table.
"""

from interbasin.jobs.translate.doctoring.checkup import Checkup, Finding, doctor

__all__ = ["Checkup", "Finding", "doctor"]
