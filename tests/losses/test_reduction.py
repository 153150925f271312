"""The names of the reductions."""

import pytest
import torch

from tailshift.losses.reduction import check_reduction, reduce


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_check_reduction__knows_torchs_names(reduction):
    check_reduction(reduction)


def test_check_reduction__refuses_another_name():
    with pytest.raises(ValueError, match=r"^`") as error:
        check_reduction("average")
    assert str(error.value) == (
        "`reduction` must be 'mean', 'sum' or 'none', but is 'average'."
    )


@pytest.mark.parametrize(
    ("reduction", "result"), [("mean", 2.0), ("sum", 4.0), ("none", [1.0, 3.0])]
)
def test_reduce__of_one_value_a_sample(reduction, result):
    assert reduce(torch.tensor([1.0, 3.0]), reduction).tolist() == result
