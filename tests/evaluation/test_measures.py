import math

import pytest

from tailshift.evaluation import Record
from tailshift.evaluation.summary import CALIBRATION, MEASURES, check_measure


def test_measures__are_scores_of_a_record():
    fields = Record.__dataclass_fields__
    assert all(name in fields for name in MEASURES)
    assert set(CALIBRATION) < set(MEASURES)


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
    assert MEASURES[name].text(value) == text


def test_check_measure__names_the_nearest():
    assert check_measure("ece") == "ece"
    with pytest.raises(ValueError, match="unknown") as error:
        check_measure("eec")
    assert str(error.value) == (
        "unknown metric 'eec'; did you mean 'ece'? Known: accuracy, many, medium, few, "
        "top5, macro_f1, ece, classwise_ece, brier, nll"
    )
