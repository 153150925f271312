"""The command line: the library's verbs, parsed and printed."""

from tailshift.cli import list, paper, serve, show, train
from tailshift.cli.app import app, main

__all__ = ["app", "list", "main", "paper", "serve", "show", "train"]
