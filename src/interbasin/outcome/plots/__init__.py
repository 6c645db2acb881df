"""Plots as self-contained SVG, drawn without any plotting library: they open in every browser, and stand in a page."""

from interbasin.outcome.plots.bars import bar_chart
from interbasin.outcome.plots.curves import line_chart, scatter_chart
from interbasin.outcome.plots.heat import heat_map

__all__ = ["bar_chart", "heat_map", "line_chart", "scatter_chart"]
