import pytest
import torch

from tailshift.metrics.calibration_error import (
    bin_of,
    check_binning,
    equal_mass_edges,
    equal_width_edges,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", [1, 3, 7, 20, 100])
def test_bin_of__an_edge_belongs_to_the_bin_below(dtype, num_bins):
    edges = equal_width_edges(num_bins, dtype)
    assert bin_of(edges[1:], edges).tolist() == list(range(num_bins))
    above = torch.nextafter(edges[:-1], torch.ones(1, dtype=dtype))
    assert bin_of(above, edges).tolist() == list(range(num_bins))
    assert bin_of(edges[:1], edges).tolist() == [0]


def test_bin_of__one_set_of_edges_a_row():
    p = torch.tensor([[0.1, 0.4], [0.1, 0.4]])
    edges = torch.tensor([[0.0, 0.2, 1.0], [0.0, 0.5, 1.0]])
    assert bin_of(p, edges).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("num_samples", [12, 13, 100])
def test_equal_mass_edges__bins_hold_equally_many(num_samples):
    p = torch.rand(num_samples)
    weights = torch.ones(num_samples, dtype=torch.float64)
    bins = bin_of(p, equal_mass_edges(p, weights, 4))
    sizes = torch.bincount(bins, minlength=4)
    assert sizes.max() - sizes.min() <= 1


def test_equal_mass_edges__weights_count_as_repetitions():
    p, repeats = torch.rand(30), torch.randint(1, 4, (30,))
    found = equal_mass_edges(p, repeats.double(), 5)
    repeated = p.repeat_interleave(repeats)
    expected = equal_mass_edges(repeated, torch.ones_like(repeated).double(), 5)
    assert torch.equal(found, expected)


def test_equal_mass_edges__equal_values_share_a_bin():
    p = torch.tensor([0.5] * 9 + [0.7])
    bins = bin_of(p, equal_mass_edges(p, torch.ones(10, dtype=torch.float64), 5))
    assert len(bins[:9].unique()) == 1
    assert bins[9] > bins[0]


@pytest.mark.parametrize("num_bins", [0, -1, 2.5, True])
def test_check_binning__refuses_a_number_of_bins(num_bins):
    with pytest.raises(ValueError, match="num_bins") as error:
        check_binning(num_bins, "equal_width")
    assert str(error.value) == (
        f"`num_bins` must be an integer >= 1, but is {num_bins!r}."
    )


def test_check_binning__refuses_a_layout():
    with pytest.raises(ValueError, match="binning") as error:
        check_binning(20, "quantile")
    assert str(error.value) == (
        "`binning` must be one of equal_width, equal_mass, but is 'quantile'."
    )
