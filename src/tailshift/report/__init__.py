"""Reports from saved predictions: tables, figures and a self-contained page."""

from tailshift.report.figures import (
    average_probability_figure,
    class_counts_figure,
    target_shift_figure,
)
from tailshift.report.page import write_report
from tailshift.report.rows import rows_by_method
from tailshift.report.run import ReportRun
from tailshift.report.tables import summary_table, to_markdown, write_csv

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
