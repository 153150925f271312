"""Text for terminals, spreadsheets and messages."""

import re
from contextlib import suppress

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return text that a terminal shows and UTF-8 holds.

    Control characters and bytes of names that are not UTF-8 are spelt out.

    Example:
        >>> import os
        >>> printable("kea\x1b[31m"), printable(os.fsdecode(b"caf\xe9"))
        ('kea\\x1b[31m', 'caf\\udce9')
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def csv_cell(text: str) -> str:
    r"""Return text that a spreadsheet shows and does not compute.

    Some of them pass over white space in front of a formula.

    Example:
        >>> csv_cell("=1+1"), csv_cell("-0.5"), csv_cell("kea"), csv_cell("\t=1+1")
        ("'=1+1", '-0.5', 'kea', "'\t=1+1")
    """
    cell = printable(text)
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\n")) else cell


def cut(text: str, most: int = 200) -> str:
    """Return the beginning of a text, for messages.

    Example:
        >>> cut("abcdef", most=3)
        'abc…'
    """
    return text if len(text) <= most else f"{text[:most]}…"
