"""Which lines a figure has, and which samples count how much in it."""

import pytest
import torch

from tailshift import post_compensate, priors
from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.series import (
    answers,
    series_of,
    weigh_samples,
)


def test_series_of__raw_and_compensated_where_they_differ(make_runs) -> None:
    series = series_of(make_runs(num_seeds=2))
    assert [(s.name, s.method, s.is_compensated) for s in series] == [
        ("Softmax", "Softmax", False),
        ("PC Softmax", "Softmax", True),
        ("Balanced Softmax", "Balanced Softmax", True),
        ("LADE", "LADE", True),
    ]
    assert all(len(s.predictions) == 2 for s in series)


def test_series_of__on_a_shifted_target_balanced_softmax_changes_too(make_runs) -> None:
    names = [s.name for s in series_of(make_runs(num_seeds=1), "backward:10")]
    assert names == [
        "Softmax",
        "PC Softmax",
        "Balanced Softmax",
        "PC Balanced Softmax",
        "LADE",
    ]


def test_series_of__only_raw_without_a_prior() -> None:
    predictions = Predictions(torch.eye(3), torch.arange(3))
    [series] = series_of([ReportRun("LADE", 0, predictions)])
    assert (series.name, series.is_compensated) == ("LADE", False)


def test_weigh_samples__uniform_weighs_classes_alike() -> None:
    predictions = Predictions(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]))
    test_set = weigh_samples(predictions, "uniform")
    expected = torch.tensor([2.0, 2 / 3, 2 / 3, 2 / 3])
    torch.testing.assert_close(test_set.weights[0], expected)
    assert test_set.target_prior.tolist() == [0.5, 0.5]


def test_weigh_samples__order_unknown() -> None:
    predictions = Predictions(torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="training counts") as error:
        weigh_samples(predictions, "forward:10")
    assert str(error.value) == (
        "Target 'forward:10' follows the training counts, which are not known here. "
        "Give `source_counts`, or use 'uniform' or a file of counts."
    )


def test_answers__are_those_of_post_compensate(make_runs) -> None:
    [run] = make_runs(("Softmax",), 1)
    p = run.predictions
    torch.testing.assert_close(answers(p, "uniform", compensated=False), p.logits)
    expected = post_compensate(
        p.logits, logit_prior=p.logit_prior, target_prior=priors.uniform(10)
    ).softmax(-1)
    ours = answers(p, "uniform", compensated=True).softmax(-1)
    torch.testing.assert_close(ours, expected)
