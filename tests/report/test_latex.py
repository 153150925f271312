"""LaTeX that compiles, whatever the text."""

from tailshift.report.latex import ESCAPES, bold, latex_table, latex_text


def test_latex_text__special_characters_are_text() -> None:
    assert latex_text("a_b & 50 % #1 $x$ {y}\\z") == (
        r"a\_b \& 50 \% \#1 \$x\$ \{y\}\textbackslash{}z"
    )


def test_latex_text__marks_and_signs() -> None:
    assert latex_text("LADE¹˒² 45.3 ± 0.1 (−0.8)\n–") == (
        r"LADE\textsuperscript{1}\textsuperscript{,}\textsuperscript{2} 45.3 $\pm$ 0.1 "
        "($-$0.8) --"
    )


def test_escapes__leave_nothing_but_ascii() -> None:
    assert all(text.isascii() for text in ESCAPES.values())


def test_latex_table__has_booktabs_rules() -> None:
    table = latex_table(["Method", "All"], [["LADE", bold("45.4")]], caption="Ours.")
    assert table == (
        "\\begin{table}\n"
        "  \\centering\n"
        "  \\caption{Ours.}\n"
        "  \\begin{tabular}{lr}\n"
        "    \\toprule\n"
        "    Method & All \\\\\n"
        "    \\midrule\n"
        "    LADE & \\textbf{45.4} \\\\\n"
        "    \\bottomrule\n"
        "  \\end{tabular}\n"
        "\\end{table}\n"
    )
