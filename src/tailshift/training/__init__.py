"""Training: one loop, its schedules and checkpoints, and the run directory."""

from tailshift.runs.run import Run, load_run
from tailshift.training.resolve import with_validation
from tailshift.training.train import train

__all__ = ["Run", "load_run", "train", "with_validation"]
