"""Reports from saved predictions: tables, figures and a self-contained page."""

from tailshift.report.page.figures import (
    average_probability_figure,
    class_counts_figure,
    target_shift_figure,
)
from tailshift.report.page.page import write_report
from tailshift.report.runs import ReportRun
from tailshift.report.tables import (
    rows_by_method,
    summary_table,
    to_markdown,
    write_csv,
)

__all__ = [
    "ReportRun",
    "average_probability_figure",
    "class_counts_figure",
    "rows_by_method",
    "summary_table",
    "target_shift_figure",
    "to_markdown",
    "write_csv",
    "write_report",
]
