"""The jobs: what people come for. Each folder is one, and stands on the rooms above."""

from interbasin._lazy import lazy_names

__all__ = ["adapt", "merge", "rebasin", "translate", "transport"]

__getattr__, __dir__ = lazy_names(__name__, __all__, {})
