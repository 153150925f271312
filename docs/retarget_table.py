"""The table of the page on species models, from the rows of its experiment."""

import csv
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "retarget.csv"
COLUMNS = ("as_trained", "restricted", "adapted", "true_prior")

Rows = Sequence[dict[str, str]]


def read_rows() -> Rows:
    """Return one row per site and kind of labels."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def accuracy_table() -> str:
    """Return the mean accuracy over sites, per imbalance ratio and labels."""
    rows = read_rows()
    lines = [
        "| imbalance ratio | sites | labels | as trained | list only | list and "
        "estimate | list and true prior | certificates that hold |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ratio, labels in dict.fromkeys((r["ratio"], r["labels"]) for r in rows):
        part = [r for r in rows if (r["ratio"], r["labels"]) == (ratio, labels)]
        means = [f"{_mean(part, name):.1f}" for name in COLUMNS]
        cells = [ratio, str(len(part)), labels, *means, _certified(part)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: Rows, name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)


def _certified(rows: Rows) -> str:
    """Return how many certificates with the status "supported" hold the truth."""
    given = [row for row in rows if row["certified_status"] == "supported"]
    if not given:
        return "none given"
    holding = [
        row
        for row in given
        if float(row["certified_low"])
        <= float(row["certified_true"])
        <= float(row["certified_high"])
    ]
    return f"{len(holding)} of {len(given)}"
