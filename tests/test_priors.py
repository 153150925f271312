import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tailshift import priors, targets


def test_from_counts__by_hand():
    """30 and 10 of 40 are 0.75 and 0.25."""
    assert priors.from_counts([30, 10]).tolist() == [0.75, 0.25]
    assert priors.from_counts([30, 10]).dtype == torch.float64


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_from_labels__counts_each_class(kind):
    labels = kind([2, 0, 2, 2])
    assert priors.from_labels(labels, num_classes=4).tolist() == [0.25, 0, 0.75, 0]


def test_uniform__is_one_over_c():
    assert priors.uniform(4).tolist() == [0.25] * 4


@pytest.mark.paper
@pytest.mark.parametrize(
    ("ratio", "total", "smallest"), [(100, 10847, 5), (50, 12608, 10), (10, 19573, 50)]
)
def test_long_tailed_counts__are_those_of_cifar100_lt(ratio, total, smallest):
    counts = priors.long_tailed_counts(500, ratio, 100)
    assert counts.sum() == total
    assert counts.max() == 500
    assert counts.min() == smallest


@given(
    st.integers(1, 5000),
    st.floats(1, 1000),
    st.integers(1, 200),
)
def test_long_tailed_counts__agree_with_a_loop(max_count, ratio, num_classes):
    counts = priors.long_tailed_counts(max_count, ratio, num_classes)
    for c in range(num_classes):
        share = 1.0 if num_classes == 1 else ratio ** (-c / (num_classes - 1))
        assert abs(counts[c].item() - max_count * share) < 1 + 1e-6
        assert counts[c].item() <= max_count * share + 1e-6


@pytest.mark.paper
@pytest.mark.parametrize(
    ("num_classes", "per_class", "sizes"),
    [
        (100, 100, {50: 2486, 25: 2956, 10: 3876, 5: 4932, 2: 7166}),
        (1000, 50, {50: 12058, 25: 14437, 10: 19059, 5: 24365, 2: 35574}),
    ],
)
def test_target_counts__have_the_papers_sizes(num_classes, per_class, sizes):
    class_counts = priors.long_tailed_counts(10000, 100, num_classes)
    for ratio, size in sizes.items():
        for kind in ("forward", "backward"):
            counts = targets.target_counts(f"{kind}:{ratio}", class_counts, per_class)
            assert counts.sum() == size


def test_target_counts__order_classes_by_training_count():
    """Ranks of counts 9, 1, 5, 5 are 0, 3, 1, 2; 8 · 8^(−k/3) is 8, 4, 2, 1."""
    class_counts = [9, 1, 5, 5]
    forward = targets.target_counts("forward:8", class_counts, per_class=8)
    backward = targets.target_counts("backward:8", class_counts, per_class=8)
    assert forward.tolist() == [8, 1, 4, 2]
    assert backward.tolist() == [1, 8, 2, 4]


def test_target_counts__uniform_keeps_all():
    assert targets.target_counts("uniform", [3, 1], per_class=7).tolist() == [7, 7]


def test_priors__still_have_the_names_of_targets_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"tailshift\.targets\.target_counts"):
        assert priors.target_counts is targets.target_counts
    with pytest.raises(AttributeError, match="no attribute 'target_count'"):
        priors.target_count  # noqa: B018


def test_paper_targets__are_eleven():
    assert len(targets.PAPER_TARGETS) == 11
    assert targets.PAPER_TARGETS[0] == "forward:50"
    assert targets.PAPER_TARGETS[-1] == "backward:50"


def test_as_prior__takes_the_wider_of_float32_and_like():
    logits = torch.zeros(1, 2, dtype=torch.bfloat16)
    assert priors.as_prior([0.5, 0.5], like=logits).dtype == torch.float32
    assert priors.as_prior([0.5, 0.5], like=logits.double()).dtype == torch.float64
    assert priors.as_prior(np.array([0.5, 0.5])).dtype == torch.float64


def test_as_prior__a_thousand_long_tailed_classes_sum_to_one():
    p = priors.from_counts(priors.long_tailed_counts(10**6, 10**5, 1000))
    assert math.isclose(priors.as_prior(p.float()).sum().item(), 1, abs_tol=1e-4)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (
            [0.5, float("nan"), 0.5],
            "`source_prior` must be finite, but is nan for class 1 (3 classes). "
            "Build it with priors.from_counts(counts).",
        ),
        (
            [1.25, -0.25],
            "`source_prior` must not be negative, but is -0.25 for class 1 "
            "(2 classes). Build it with priors.from_counts(counts).",
        ),
        (
            [0.5, 0.4731],
            "`source_prior` must sum to 1, but sums to 0.9731 (2 classes). "
            "Build it with priors.from_counts(counts).",
        ),
        (
            [0.0, 1.0],
            "`source_prior` must be positive for every class, but is 0 for class 0 "
            "(2 classes). Drop the class or give it a sample.",
        ),
        (
            [[0.5, 0.5]],
            "`source_prior` must be a vector with one entry a class, "
            "but has shape (1, 2).",
        ),
        (
            [],
            "`source_prior` must be a vector with one entry a class, "
            "but has shape (0,).",
        ),
    ],
)
def test_as_prior__refuses_bad_values(prior, message):
    with pytest.raises(ValueError, match="source_prior") as error:
        priors.as_prior(prior, positive=True)
    assert str(error.value) == message


def test_as_prior__refuses_a_wrong_length():
    with pytest.raises(ValueError, match="entries") as error:
        priors.as_prior([0.1] * 10, name="target_prior", num_classes=100)
    assert str(error.value) == (
        "`target_prior` has 10 entries but `logits` has 100 classes."
    )


def test_as_prior__refuses_what_is_not_numbers():
    with pytest.raises(TypeError, match="tensor") as error:
        priors.as_prior("uniform")
    assert str(error.value) == (
        "`source_prior` must be a tensor, an array or a list of numbers, but is str."
    )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, -1], "`counts` must be finite and not negative, but holds -1."),
        ([3, math.inf], "`counts` must be finite and not negative, but holds inf."),
        ([3, math.nan], "`counts` must be finite and not negative, but holds nan."),
        ([0, 0], "`counts` must not all be 0 (2 classes): there is no sample."),
    ],
)
def test_from_counts__refuses(counts, message):
    with pytest.raises(ValueError, match="counts") as error:
        priors.from_counts(counts)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (
            [0, 3],
            ValueError,
            "`labels` must lie in 0..2, but label 1 (counted from 0) is 3.",
        ),
        (
            [-1],
            ValueError,
            "`labels` must lie in 0..2, but label 0 (counted from 0) is -1.",
        ),
        ([0.5], TypeError, "`labels` must be integers, but are torch.float64."),
        ([[0]], ValueError, "`labels` must be a vector, but has shape (1, 1)."),
        ([], ValueError, "`labels` must not be empty: there is no class to count."),
    ],
)
def test_from_labels__refuses(labels, kind, message):
    with pytest.raises(kind, match="labels") as error:
        priors.from_labels(labels, num_classes=3)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (
            0.01,
            "`imbalance_ratio` must be >= 1 (largest / smallest count), "
            "but is 0.01. Did you mean 100?",
        ),
        (
            -3,
            "`imbalance_ratio` must be >= 1 (largest / smallest count), but is -3.",
        ),
        (
            math.nan,
            "`imbalance_ratio` must be >= 1 (largest / smallest count), but is nan.",
        ),
    ],
)
def test_long_tailed_counts__refuses_a_ratio_below_one(ratio, message):
    with pytest.raises(ValueError, match="imbalance_ratio") as error:
        priors.long_tailed_counts(500, ratio, 10)
    assert str(error.value) == message


def test_sizes__refuse_zero():
    with pytest.raises(ValueError, match="num_classes") as error:
        priors.uniform(0)
    assert str(error.value) == "`num_classes` must be at least 1, but is 0."
    with pytest.raises(ValueError, match="per_class") as error:
        targets.target_counts("uniform", [1, 1], per_class=0)
    assert str(error.value) == "`per_class` must be at least 1, but is 0."
