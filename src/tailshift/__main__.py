"""``python -m tailshift`` is the command line."""

from tailshift.cli import program

program()
