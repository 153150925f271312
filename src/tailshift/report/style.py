"""How the report's figures look: colours, lines, axes, and names as plain text."""

import html
from collections.abc import Mapping
from itertools import cycle

import plotly.graph_objects as go

# Okabe and Ito's colours, told apart with any colour vision; black and yellow are left
# out because each of them vanishes on one of a page's two backgrounds.
COLOURS = {"softmax": "#D55E00", "balanced_softmax": "#0072B2", "lade": "#009E73"}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#8C7AE6", "#7F8C8D")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")
NEUTRAL = "#728197"
JOINERS = "\u200c\u200d"  # invisible, but Persian and emoji are spelt with them


def plain(text: str) -> str:
    """Return ``text`` escaped, so that a Plotly label or HTML shows it as it is.

    Line breaks and other control characters become spaces.

    Example:
        >>> plain("<b>cats</b> & dogs")
        '&lt;b&gt;cats&lt;/b&gt; &amp; dogs'
    """
    escaped = html.escape(one_line(text), quote=False)
    # Plotly knows few entities by name, and takes text between dollar signs for TeX.
    return "".join(f"&#{ord(c)};" if c in "\"'$" else c for c in escaped)


def one_line(text: str) -> str:
    """Return ``text`` on one line, without control characters; nothing is escaped."""
    kept = "".join(c if c.isprintable() or c in JOINERS else " " for c in text)
    return " ".join(kept.split())


def escape_json(text: str) -> str:
    r"""Return JSON text that cannot end the script element it stands in.

    Example:
        >>> escape_json('["</script>"]')
        '["\\u003c/script\\u003e"]'
    """
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


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


def line_style(
    colour: str, symbol: str, is_compensated: bool, with_markers: bool = True
) -> dict[str, object]:
    """Return a trace's look: dashed and open if raw, solid if compensated."""
    return {
        "mode": "lines+markers" if with_markers else "lines",
        "line": {
            "color": colour,
            "width": 2.5 if is_compensated else 2,
            "dash": "solid" if is_compensated else "dash",
        },
        "marker": {
            "symbol": symbol if is_compensated else f"{symbol}-open",
            "size": 8,
        },
    }


def empty_figure(y_title: str) -> go.Figure:
    """Return a figure without traces: transparent, nothing to zoom or drag."""
    figure = go.Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#3a424d"},
        margin={"l": 52, "r": 12, "t": 12, "b": 56},
        hovermode="closest",
        dragmode=False,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    axis = {"gridcolor": "#e3e6ea", "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis, fixedrange=True)
    figure.update_yaxes(**axis, fixedrange=True, title_text=y_title)
    return figure
