"""Run directories: what passes from training to everything else."""

from typing import TYPE_CHECKING

from tailshift.deprecation import old_names
from tailshift.runs.run import Run, load_run

__all__ = ["Run", "load_run"]

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"load": "tailshift.runs.load_run"})
