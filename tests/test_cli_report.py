"""`tailshift report` on logits made elsewhere: tables, page and what is not known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailshift as ts

Command = Callable[..., Any]

NUM_CLASSES, PER_CLASS = 4, 25
COUNTS = np.array([400, 100, 30, 8])


def _save(path: str, seed: int = 0, **fields: object) -> None:
    rng = np.random.default_rng(seed)
    y = np.arange(NUM_CLASSES).repeat(PER_CLASS)
    logits = rng.normal(size=(len(y), NUM_CLASSES)) + 2 * np.eye(NUM_CLASSES)[y]
    logits += np.log(COUNTS / COUNTS.sum())
    np.savez(path, **({"logits": logits, "labels": y} | fields))


def _rows(table: str) -> list[list[str]]:
    return [line.split(",") for line in Path(table).read_text().splitlines()[1:]]


def test_report__of_logits_with_their_priors(tailshift: Command) -> None:
    prior = COUNTS / COUNTS.sum()
    names = np.array(["<script>", "b", "c", "d"])
    known = {"source_counts": COUNTS, "logit_prior": prior, "class_names": names}
    _save("a.npz", 0, **known)
    _save("b.npz", 1, **known)
    result = tailshift("report", "My model=a.npz", "b.npz", "-o", "out")
    assert result == (0, "out/report.html\n", "")
    rows = _rows("out/table.csv")
    assert len(rows) == 2 * 11
    assert {row[0] for row in rows} == {"My model", "b"}
    [backward] = [r for r in rows if r[:2] == ["My model", "backward:50"]]
    assert float(backward[4]) > float(backward[2]) + 10  # compensation helps
    page = Path("out/report.html").read_text(encoding="utf-8")
    for text in ("PC My model", "&lt;script&gt;", 'id="explorer-data"'):
        assert text in page


def test_report__of_logits_without_priors(tailshift: Command) -> None:
    _save("a.npz")
    assert tailshift("report", "a.npz", "-o", "out") == (
        0,
        "out/report.html\n",
        "note: a.npz does not say which prior its logits carry, so only raw results "
        "are shown. Name it with --logit-prior.\n",
    )
    [row] = _rows("out/table.csv")
    assert row[:2] == ["a", "as_is"]
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert ("The prior of the logits is unknown, so no result is re-targeted.") in page


def test_report__logit_prior_by_name(tailshift: Command) -> None:
    _save("a.npz", source_counts=COUNTS)
    options = ("a.npz", "--logit-prior", "source", "-o", "out")
    assert tailshift("report", *options).err == ""
    [uniform] = [row for row in _rows("out/table.csv") if row[1] == "uniform"]
    assert float(uniform[4]) > float(uniform[2])


def test_report__old_option_for_files_still_works(tailshift: Command) -> None:
    _save("a.npz", source_counts=COUNTS, logit_prior=COUNTS / COUNTS.sum())
    assert tailshift("report", "--logits", "a.npz", "-o", "out") == (
        0,
        "out/report.html\n",
        "note: `--logits` is deprecated: name the files as arguments.\n",
    )
    with pytest.warns(DeprecationWarning, match="`logits` is deprecated"):
        ts.report((), "again", logits=["a.npz"])
    assert (
        Path("again/report.html").read_bytes() == Path("out/report.html").read_bytes()
    )


def test_report__of_probs_with_a_prior_and_no_counts(tailshift: Command) -> None:
    probs = np.full((NUM_CLASSES, NUM_CLASSES), 0.1) + 0.6 * np.eye(NUM_CLASSES)
    prior = np.full(NUM_CLASSES, 0.25)
    np.savez("a.npz", probs=probs, labels=np.arange(4), logit_prior=prior)
    assert tailshift("report", "a.npz", "-o", "out").err == ""
    [row] = _rows("out/table.csv")
    assert row[:6] == ["a", "uniform", "100.00", "0.00", "100.00", "0.00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a run directory, or a file of logits."),
        (
            ["none.npz"],
            "There is no predictions file none.npz. "
            "Write one with Predictions.save(path).",
        ),
        (
            ["a.npz", "a.npz"],
            "`runs` must differ in method or seed, but a seed 0 is there twice. "
            "Give one of them another method name.",
        ),
        (
            ["a.npz", "--logit-prior", "source"],
            "`logit_prior` 'source' is the prior of the training set, but "
            "a.npz holds no `source_counts`. Add them to the file.",
        ),
    ],
)
def test_report__refuses_with_a_sentence(
    tailshift: Command, arguments: list[str], message: str
) -> None:
    _save("a.npz")
    result = tailshift("report", *arguments, "-o", "out")
    assert result.code == 2
    assert result.err.splitlines()[-1] == f"error: {message}"
    assert not Path("out").exists()
