"""Methods of other papers for the same task, written from their descriptions, on the same embedder, body and steps."""

from interbasin.jobs.adapt.rivals.mona import fit_mona
from interbasin.jobs.adapt.rivals.orca import fit_orca
from interbasin.jobs.adapt.rivals.pare import fit_pare

__all__ = ["fit_mona", "fit_orca", "fit_pare"]
