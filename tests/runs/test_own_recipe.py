"""A run's later life goes by its own configuration: its recipe may be gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift.evaluation.results import read_results
from tailshift.paper.reproduce import PaperRequest, make_plan
from tailshift.runs.index import find_runs
from tailshift.storage import read_json, write_json

Command = Callable[..., Any]


@pytest.fixture
def run(tailshift: Command) -> str:
    """Train a recipe of one's own, whose file is gone afterwards."""
    file = Path("mine.toml")
    file.write_text('extends = "digits_lt"\n[train]\nepochs = 2\n', encoding="utf-8")
    result = tailshift("train", file)
    assert result.code == 0, result.err
    file.unlink()
    return "runs/mine/softmax-seed0"


def test_own_recipe__is_evaluated_into_results_and_logits(
    tailshift: Command, run: str
) -> None:
    result = tailshift("evaluate", run, "--results", "r.csv", "--logits", "kept")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("kept/mine-softmax-seed0.safetensors\n")
    rows = read_results(Path("r.csv"))
    assert len(rows) == 11
    assert {row["recipe"] for row in rows} == {"mine"}
    assert rows[0]["command"].startswith("tailshift train mine.toml --set data.name=")


def test_own_recipe__is_reported_and_started_from(tailshift: Command, run: str) -> None:
    assert tailshift("report", run, "-o", "report").code == 0
    assert Path("report/report.html").is_file()
    short = ("--set", "train.epochs=2", "--set", "method.epochs=1")
    second = ("train", "digits_lt", "--method", "crt", "--from", run, *short)
    assert tailshift(*second).code == 0
    assert ts.load_run("runs/digits_lt/crt-seed0").is_finished


def test_own_recipe__does_not_disturb_reproduce(tailshift: Command, run: str) -> None:
    said: list[str] = []
    assert len(find_runs(Path("runs"), said.append)) == 1
    plan = make_plan(PaperRequest("table5"), announce=said.append)
    assert said == []
    assert not any(plan.found.values())


def test_strange_recipe__is_never_a_path(tailshift: Command, run: str) -> None:
    config = Path(run, "config.json")
    settings = read_json(config)
    settings["recipe"] = "../../stolen"
    write_json(config, settings)
    before = set(Path().rglob("*"))
    result = tailshift("evaluate", run, "--logits", "a/b")
    assert (result.code, result.err) == (
        2,
        "error: `recipe` must be a file name, without slashes, colons, control "
        "characters or a dot in front, but is '../../stolen'. Rename it.\n",
    )
    assert set(Path().rglob("*")) == before
