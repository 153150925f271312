"""The names of the reductions."""

import pytest

from tailshift.losses.reduction import check_reduction


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_check_reduction__knows_torchs_names(reduction):
    check_reduction(reduction)


def test_check_reduction__refuses_another_name():
    with pytest.raises(ValueError, match=r"^`") as error:
        check_reduction("average")
    assert str(error.value) == (
        "`reduction` must be 'mean', 'sum' or 'none', but is 'average'."
    )
