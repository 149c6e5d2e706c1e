"""Charts as SVG text: what one is made of, and the kinds there are.

Pure. A chart needs no script and no style of its own: colours and dashes come from the classes in
`reports/page/style.css`. It has no ids, so that any number of charts can stand in one page.
"""

from reports.charts.effects import Effect, effects
from reports.charts.lines import lines, scatter
from reports.charts.percentiles import percentile_points
from reports.charts.shapes import Axis, Band, Bound, Chart, Series, Table
from reports.charts.timeline import Bar, timeline

__all__ = [
    "Axis",
    "Band",
    "Bar",
    "Bound",
    "Chart",
    "Effect",
    "Series",
    "Table",
    "effects",
    "lines",
    "percentile_points",
    "scatter",
    "timeline",
]
