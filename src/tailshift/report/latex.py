"""LaTeX tables with booktabs rules."""

from collections.abc import Sequence

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "˒": r"\textsuperscript{,}",
    **{
        mark: rf"\textsuperscript{{{digit}}}" for digit, mark in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")
    },
}


def latex_text(text: str) -> str:
    r"""Return ``text`` so that LaTeX shows it as it is, on one line.

    Example:
        >>> print(latex_text("50 % of R&D"))
        50 \% of R\&D
    """
    return "".join(
        ESCAPES.get(character, character) for character in " ".join(text.split())
    )


def bold(text: str) -> str:
    """Return LaTeX in bold."""
    return rf"\textbf{{{text}}}"


def latex_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    num_names: int = 1,
) -> str:
    r"""Return a table environment; it needs ``\usepackage{booktabs}``.

    Args:
        head: The columns' headings, as LaTeX.
        rows: The cells of each row, as LaTeX.
        caption: As LaTeX.
        num_names: So many columns at first hold text and stand to the left.
    """
    columns = "l" * num_names + "r" * (len(head) - num_names)
    lines = [
        r"\begin{table}",
        r"  \centering",
        *([rf"  \caption{{{caption}}}"] if caption else []),
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(head)} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(row)} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
