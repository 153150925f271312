"""What the page carries for the browser to compute with, and what it says was cut."""

import base64
import dataclasses
import json

import numpy as np
import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.page.interactive import (
    explorer,
    fit,
    payload,
    stratified_sample,
)

AMPLE = 10_000_000


def _all_rows(runs):
    return [torch.arange(len(run.predictions.labels)) for run in runs]


def _decode(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def test_payload__holds_what_was_predicted(make_runs) -> None:
    runs = make_runs(num_seeds=2)
    data = payload(runs, _all_rows(runs))
    assert [m["name"] for m in data["methods"]] == [
        "Softmax",
        "Balanced Softmax",
        "LADE",
    ]
    assert [len(m["runs"]) for m in data["methods"]] == [2, 2, 2]
    predictions, run = runs[1].predictions, data["methods"][0]["runs"][1]
    f = predictions.logits.double().numpy()
    halves = _decode(run["logits"], "<f2").reshape(f.shape).astype(float)
    np.testing.assert_allclose(halves, f - f.max(1, keepdims=True), rtol=1e-3)
    assert (halves.max(1) == 0).all()
    assert _decode(run["labels"], "<u2").tolist() == predictions.labels.tolist()
    assert run["trainedPrior"] == predictions.logit_prior.tolist()
    assert data["counts"] == predictions.source_counts.tolist()
    assert data["order"] == list(range(10))
    assert sum(map(len, data["groups"].values())) == 10


def test_payload__without_priors(make_runs) -> None:
    [run] = make_runs(("Softmax",), 1)
    unknown = dataclasses.replace(run.predictions, source_counts=None, logit_prior=None)
    runs = [dataclasses.replace(run, predictions=unknown)]
    data = payload(runs, _all_rows(runs))
    assert data["counts"] is None
    assert data["groups"] is None
    assert data["methods"][0]["runs"][0]["trainedPrior"] is None
    found = explorer(runs, room=AMPLE)
    assert found["notes"] == [
        "The prior of the logits is unknown, so only the accuracy as trained is shown."
    ]
    assert found["order"] == (
        "Training counts are unknown: forward favours the first class ids, "
        "backward the last."
    )


def test_payload__logits_beyond_half_precision() -> None:
    """−inf stays, what half precision cannot hold becomes −inf; the largest is 0."""
    f = torch.tensor([[3e5, 0.0, 3e5 - 1], [0.0, -torch.inf, 2.0]])
    run = ReportRun("A", 0, Predictions(f, torch.tensor([0, 1])))
    [method] = payload([run], _all_rows([run]))["methods"]
    halves = _decode(method["runs"][0]["logits"], "<f2").tolist()
    assert halves == [0, -np.inf, -1, -2, -np.inf, 0]


def test_explorer__says_which_classes_are_left_out() -> None:
    predictions = Predictions(torch.eye(3)[:2], torch.tensor([0, 1]))
    notes = explorer([ReportRun("A", 0, predictions)], room=AMPLE)["notes"]
    sentence = "1 class without test samples is left out of every target: class 2."
    assert sentence in notes


def test_stratified_sample__as_many_of_each_class_as_fit() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 20)
    rows = stratified_sample(labels, 4, size=24)
    assert torch.bincount(labels[rows], minlength=4).tolist() == [10, 3, 10, 0]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert rows[9] > 12  # drawn from the whole class, not from its beginning
    assert torch.equal(rows, stratified_sample(labels, 4, size=24))
    assert len(stratified_sample(labels, 4, size=73)) == 73
    assert len(stratified_sample(labels, 4, size=2)) == 0


def test_fit__everything_where_there_is_room(make_runs) -> None:
    runs = make_runs(num_seeds=2)
    kept, rows, notes = fit(runs, AMPLE)
    assert kept == runs
    assert [len(r) for r in rows] == [500] * 6
    assert notes == []


def test_fit__one_run_of_each_method_then_a_sample(make_runs) -> None:
    runs = make_runs(num_seeds=2)
    bytes_of_run, bytes_of_names = 500 * 10 * 8 / 3, 200 * 10 * 6
    kept, rows, notes = fit(runs, int(bytes_of_names + 3 * bytes_of_run) + 1)
    assert [(run.method, run.seed) for run in kept] == [
        ("Softmax", 0),
        ("Balanced Softmax", 0),
        ("LADE", 0),
    ]
    assert [len(r) for r in rows] == [500] * 3
    assert notes == ["Only the first run of each method is included here."]
    kept, rows, notes = fit(runs, int(bytes_of_names + bytes_of_run))
    assert [len(r) for r in rows] == [160] * 3  # 166 fit: 16 of each class
    assert notes[1] == (
        "These numbers use 160 of 500 test images, balanced over the classes as far "
        "as possible: all of them would exceed the page limit of 20 MB."
    )


@pytest.mark.parametrize("room", [20_000, 60_000])
def test_explorer__keeps_within_its_room(make_runs, room: int) -> None:
    data = explorer(make_runs(num_seeds=1), room=room)["data"]
    assert len(json.dumps(data)) < room
    assert len(data["methods"]) == 3


def test_explorer__too_many_classes_for_any_page(make_runs) -> None:
    found = explorer(make_runs(num_seeds=1), room=6_500)
    assert found["data"] is None
    assert found["notes"] == [
        "With 10 classes, one test image per class already exceeds the page limit of "
        "20 MB, so the target cannot be changed here. The tables and figures below are "
        "complete."
    ]
