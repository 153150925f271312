"""Run directories: what passes from training to everything else."""

from tailshift.runs.run import Run, load_run

__all__ = ["Run", "load_run"]
