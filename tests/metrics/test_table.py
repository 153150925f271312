"""One table says what each metric is called, and how it is printed."""

import math
from dataclasses import fields

import pytest

from tailshift.evaluation import Record
from tailshift.metrics.table import CALIBRATION, METRICS, check_metric


def test_metrics__are_the_scores_of_a_record():
    numbers = [field.name for field in fields(Record) if field.type is float]
    no_scores = {"num_effective", "subset_deviation", "standard_error"}
    scores = [name for name in numbers if name not in no_scores]
    assert scores == [name for name, _ in METRICS.items()]
    assert CALIBRATION == ("ece", "classwise_ece", "brier", "nll")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.45678, "45.7"),
        ("ece", 0.1484, "0.148"),
        ("classwise_ece", 0.004341, "0.00434"),
        ("nll", math.inf, "inf"),
        ("few", math.nan, "–"),
    ],
)
def test_text__is_as_the_paper_prints(name, value, text):
    assert METRICS.get(name).text(value) == text


def test_check_metric__names_the_nearest():
    assert check_metric("ece") == "ece"
    with pytest.raises(ValueError, match="unknown") as error:
        check_metric("eec")
    assert str(error.value) == (
        "unknown metric 'eec'; did you mean 'ece'? Known: accuracy, brier, "
        "classwise_ece, ece, few, macro_f1, many, medium, nll, top5"
    )
