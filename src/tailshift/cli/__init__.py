"""The command line: the library's verbs."""

from tailshift.cli import (
    data,
    estimating,
    figures,
    listing,
    paper,
    serving,
    showing,
    training,
)
from tailshift.cli.app import app, main

__all__ = [
    "app",
    "data",
    "estimating",
    "figures",
    "listing",
    "main",
    "paper",
    "serving",
    "showing",
    "training",
]
