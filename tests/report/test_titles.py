"""Runs of one method that differ in a setting are told apart."""

from tailshift.methods import METHODS
from tailshift.report.runs import distinct_titles


def test_distinct_titles__only_what_differs() -> None:
    lade, softmax = METHODS.get("lade"), METHODS.get("softmax")
    assert distinct_titles([lade(), softmax(), lade()]) == ["LADE", "Softmax", "LADE"]
    methods = [lade(alpha=0.5), softmax(), lade(alpha=1.0), lade(alpha=1.0)]
    assert distinct_titles(methods) == [
        "LADE (α = 0.5)",
        "Softmax",
        "LADE (α = 1)",
        "LADE (α = 1)",
    ]
    methods = [lade(mode="official"), lade(lam=0.5)]
    assert distinct_titles(methods) == [
        "LADE (λ = 0.01, mode = official)",
        "LADE (λ = 0.5, mode = paper)",
    ]


def test_distinct_titles__of_none() -> None:
    assert distinct_titles([]) == []
