"""The numbers that a loss is set with."""

import math

import pytest

from tailshift.losses.checks import check_not_negative, check_positive, check_share


@pytest.mark.parametrize(
    ("check", "good", "bad", "rule"),
    [
        (check_not_negative, [0, 2.5], [-1, math.inf], "be finite and not negative"),
        (check_positive, [1e-9, 30], [0, -2.0, math.inf], "be finite and positive"),
        (check_share, [0, 0.5, 1], [-0.1, 1.1], "lie in [0, 1]"),
    ],
)
def test_checks__take_what_they_say(check, good, bad, rule):
    for value in good:
        check("x", value)
    for value in [*bad, math.nan]:
        with pytest.raises(ValueError, match=r"^`") as error:
            check("x", value)
        assert str(error.value) == f"`x` must {rule}, but is {value}."
