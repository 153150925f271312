import math
from dataclasses import replace

import numpy as np
import pytest

from tailshift.evaluation import Record, Summary, summarise

NAN = math.nan
TEN = {"num_samples": 10, "num_effective": 10.0, "sampling": "first"}


def _record(target, accuracy, *, compensated=False):
    return Record(target, compensated, 10, accuracy, NAN, NAN, NAN, 1.0, accuracy)


def _run(raw, compensated):
    return [
        _record("forward:50", raw),
        _record("forward:50", compensated, compensated=True),
        _record("uniform", raw / 2),
        _record("uniform", compensated / 2, compensated=True),
    ]


def test_summarise__worked_example():
    """Mean of .25 and .75 is .5, their sd √(2 · .25² / 1) = .3536."""
    summaries = summarise({"LADE": [_run(0.25, 0.5), _run(0.75, 0.5)]})
    sd = math.sqrt(0.125)
    assert summaries == [
        Summary("LADE", "forward:50", 0.5, pytest.approx(sd), 0.5, 0.0, 2, **TEN),
        Summary("LADE", "uniform", 0.25, pytest.approx(sd / 2), 0.25, 0.0, 2, **TEN),
    ]


def test_summarise__as_numpy():
    rng = np.random.default_rng(0)
    raw, compensated = rng.random(5), rng.random(5)
    runs = [_run(a, b) for a, b in zip(raw.tolist(), compensated.tolist(), strict=True)]
    summary = summarise({"LADE": runs})[0]
    assert summary.raw_mean == pytest.approx(raw.mean())
    assert summary.raw_sd == pytest.approx(raw.std(ddof=1))
    assert summary.compensated_mean == pytest.approx(compensated.mean())
    assert summary.compensated_sd == pytest.approx(compensated.std(ddof=1))
    assert summary.num_runs == 5


def test_summarise__one_run_has_no_deviation():
    summary = summarise({"LADE": [_run(0.5, 0.75)]})[0]
    assert summary == Summary("LADE", "forward:50", 0.5, 0.0, 0.75, 0.0, 1, **TEN)


def test_summarise__keeps_the_order_of_methods_and_targets():
    summaries = summarise({"Softmax": [_run(0.5, 0.5)], "LADE": [_run(0.5, 0.5)] * 3})
    assert [(s.method, s.target, s.num_runs) for s in summaries] == [
        ("Softmax", "forward:50", 1),
        ("Softmax", "uniform", 1),
        ("LADE", "forward:50", 3),
        ("LADE", "uniform", 3),
    ]


def test_summarise__without_compensated_records():
    [summary] = summarise({"LADE": [[_record("as_is", 0.5)], [_record("as_is", 0.5)]]})
    assert (summary.raw_mean, summary.raw_sd) == (0.5, 0.0)
    assert math.isnan(summary.compensated_mean)
    assert math.isnan(summary.compensated_sd)


def test_summarise__nothing():
    assert summarise({}) == []


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "`records` must have a run of 'LADE', but has none."),
        (
            [_run(0.5, 0.5), _run(0.5, 0.5), _run(0.5, 0.5)[:3]],
            "The runs of 'LADE' must cover the same targets, "
            "but only one of runs 0 and 2 has a compensated record of 'uniform'.",
        ),
        (
            [_run(0.5, 0.5)[2:], _run(0.5, 0.5)],
            "The runs of 'LADE' must cover the same targets, "
            "but only one of runs 0 and 1 has a raw record of 'forward:50'.",
        ),
    ],
)
def test_summarise__refuses_with_a_sentence(runs, message):
    with pytest.raises(ValueError, match="LADE") as error:
        summarise({"LADE": runs})
    assert str(error.value) == message


def test_summarise__another_metric():
    runs = [
        [
            replace(_record("uniform", 0.5), ece=ece),
            replace(_record("uniform", 0.5, compensated=True), ece=ece / 2),
        ]
        for ece in (0.1, 0.3)
    ]
    [summary] = summarise({"LADE": runs}, "ece")
    assert summary.metric == "ece"
    assert (summary.raw_mean, summary.compensated_mean) == pytest.approx((0.2, 0.1))
    assert summary.raw_sd == pytest.approx(math.sqrt(0.02))


def test_summarise__the_subsets_of_a_single_run():
    spread = _record("uniform", 0.02)
    record = replace(_record("uniform", 0.5), num_subsets=10, deviation=spread)
    [summary] = summarise({"LADE": [[record]]})
    assert (summary.raw_mean, summary.raw_sd, summary.num_values) == (0.5, 0.02, 10)
    [summary] = summarise({"LADE": [[record], [record]]})
    assert (summary.raw_mean, summary.raw_sd, summary.num_values) == (0.5, 0, 2)


def test_summarise__an_infinite_score_has_no_deviation():
    runs = [[replace(_record("uniform", 0.5), nll=nll)] for nll in (1.0, math.inf)]
    [summary] = summarise({"LADE": runs}, "nll")
    assert summary.raw_mean == math.inf
    assert math.isnan(summary.raw_sd)
