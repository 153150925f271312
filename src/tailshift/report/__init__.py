"""Reports from saved predictions: tables, figures and a self-contained page."""

import sys
from types import ModuleType

from tailshift.report.page.page import report, write_report
from tailshift.report.rows import rows_by_method
from tailshift.report.runs import ReportRun
from tailshift.report.tables import summary_table, to_markdown, write_csv

__all__ = [
    "ReportRun",
    "report",
    "rows_by_method",
    "summary_table",
    "to_markdown",
    "write_csv",
    "write_report",
]


class _CallableModule(ModuleType):
    """This package, which `ts.report(runs, folder)` calls: one name for both."""

    __call__ = staticmethod(report)


sys.modules[__name__].__class__ = _CallableModule
