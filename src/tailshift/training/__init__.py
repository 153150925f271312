"""Training: one loop, its schedules and checkpoints, and the run directory."""

from typing import TYPE_CHECKING

from tailshift.deprecation import old_names
from tailshift.runs.run import Run, load_run
from tailshift.training.resolve import with_validation
from tailshift.training.train import train

__all__ = ["Run", "load_run", "train", "with_validation"]

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"load": "tailshift.training.load_run"})
