"""Colours and markers of the report's figures, and names as plain text."""

from collections.abc import Mapping
from itertools import cycle

# Okabe and Ito's colours, told apart with any colour vision; black and yellow are left
# out because each of them vanishes on one of a page's two backgrounds.
COLOURS = {"softmax": "#D55E00", "balanced_softmax": "#0072B2", "lade": "#009E73"}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#8C7AE6", "#7F8C8D")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")
NEUTRAL = "#728197"
MAX_NAMED_CLASSES = 20  # with more classes an axis shows ranks
MAX_CLASS_NAME = 14  # characters
JOINERS = "\u200c\u200d"  # invisible, but Persian and emoji are spelt with them


def one_line(text: str) -> str:
    """Return ``text`` on one line, without control characters; nothing is escaped."""
    kept = "".join(c if c.isprintable() or c in JOINERS else " " for c in text)
    return " ".join(kept.split())


def method_colours(keys: Mapping[str, str]) -> dict[str, str]:
    """Return a colour for each method, the same in all figures.

    A registered method of the paper has its own. If several variants of it are shown,
    the first one has it.

    Args:
        keys: Registered name of each method, by its title.

    Example:
        >>> method_colours({"Focal": "focal", "LADE (α = 0.1)": "lade"})
        {'Focal': '#CC79A7', 'LADE (α = 0.1)': '#009E73'}
    """
    others, own = cycle(OTHER_COLOURS), dict(COLOURS)
    return {title: own.pop(key, "") or next(others) for title, key in keys.items()}


def method_styles(keys: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for each method."""
    colours = method_colours(keys)
    return {
        method: (colour, symbol)
        for (method, colour), symbol in zip(colours.items(), cycle(_SYMBOLS))
    }
