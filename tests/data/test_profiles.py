import pytest

from tailshift.data.dataset import profile_counts, step_counts


def test_step_counts__by_hand():
    """Ten classes at ratio 50: five of 500, five of 500/50 = 10."""
    assert step_counts(500, 50, 10).tolist() == [500] * 5 + [10] * 5


@pytest.mark.paper
@pytest.mark.parametrize(
    ("ratio", "total", "smallest"),
    [(100, 10_847, 5), (50, 12_608, 10), (10, 19_573, 50)],
)
def test_profile_counts__totals_of_cifar100_lt(ratio, total, smallest):
    counts = profile_counts("exponential", 500, ratio, 100)
    assert counts.sum() == total
    assert counts.min() == counts[-1] == smallest
    assert counts.tolist() == [int(500 * (1 / ratio) ** (c / 99)) for c in range(100)]


@pytest.mark.parametrize("profile", ["exponential", "step"])
def test_profile_counts__ratio_one_is_balanced(profile):
    assert profile_counts(profile, 30, 1, 4).tolist() == [30] * 4


@pytest.mark.parametrize("profile", ["exponential", "step"])
@pytest.mark.parametrize("ratio", [2, 7, 10, 49, 100])
def test_profile_counts__ends_at_the_ratio(profile, ratio):
    counts = profile_counts(profile, 490 * ratio, ratio, 10)
    assert counts[0] == 490 * ratio
    assert counts[-1] == 490
    assert (counts.diff() <= 0).all()


@pytest.mark.parametrize("profile", ["exponential", "step"])
@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (
            0.01,
            "`imbalance_ratio` must be >= 1 (largest / smallest count), but is 0.01. "
            "Did you mean 100?",
        ),
        (-3, "`imbalance_ratio` must be >= 1 (largest / smallest count), but is -3."),
    ],
)
def test_profile_counts__ratio_below_one(profile, ratio, message):
    with pytest.raises(ValueError, match="imbalance_ratio") as error:
        profile_counts(profile, 500, ratio, 10)
    assert str(error.value) == message


def test_profile_counts__a_class_without_images():
    with pytest.raises(ValueError, match="imbalance_ratio") as error:
        profile_counts("step", 500, 1000, 10)
    assert str(error.value) == (
        "`imbalance_ratio` must be <= 500 (the images of the largest class), but is "
        "1000: class 5 would have no image."
    )


def test_profile_counts__unknown_profile():
    with pytest.raises(ValueError, match="profile") as error:
        profile_counts("exponentail", 500, 10, 10)
    assert str(error.value) == (
        "unknown profile 'exponentail'; did you mean 'exponential'? "
        "Known: exponential, step"
    )
