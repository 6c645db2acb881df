"""Plots as self-contained SVG, drawn without any plotting library: they open in every browser, and stand in a page."""

from interbasin.outcome.plots.bars import bar_chart
from interbasin.outcome.plots.heat import heat_map
from interbasin.outcome.plots.lines import line_chart
from interbasin.outcome.plots.scatter import scatter_chart

__all__ = ["bar_chart", "heat_map", "line_chart", "scatter_chart"]
