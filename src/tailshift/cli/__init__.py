"""The command line: the library's verbs, parsed and printed."""

from tailshift.cores import configure_command

configure_command()  # before anything below imports torch

from tailshift.workers import exit_on_signals  # noqa: E402

with exit_on_signals():  # they come before `main` runs, too
    from tailshift.cli import (
        estimate,
        features,
        inspect,
        list,
        paper,
        predict,
        retarget,
        serve,
        show,
        train,
    )
    from tailshift.cli.app import app, main, program

__all__ = [
    "app",
    "estimate",
    "features",
    "inspect",
    "list",
    "main",
    "paper",
    "predict",
    "program",
    "retarget",
    "serve",
    "show",
    "train",
]
