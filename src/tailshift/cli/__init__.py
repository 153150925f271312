"""The command line: the library's verbs."""

from tailshift.cli import data, listing, paper, showing, training
from tailshift.cli.app import app, main

__all__ = ["app", "data", "listing", "main", "paper", "showing", "training"]
