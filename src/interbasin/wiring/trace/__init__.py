"""A network as a graph of operators: what it is called with, what comes out, and what a trace cannot follow."""

from interbasin.wiring.trace.tracing import Inputs, trace

__all__ = ["Inputs", "trace"]
