import re

import numpy as np
import pytest
import torch

from tailshift.target_names import Shift, parse_target
from tailshift.targets import exact_prior

COUNTS = torch.tensor([10, 50, 30, 20])
ALL = torch.ones(4, dtype=torch.bool)


def _prior(name, present=ALL, counts=COUNTS):
    return exact_prior(name, counts, present.long()).tolist()


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("uniform", Shift("uniform", "uniform")),
        ("forward:50", Shift("forward:50", "forward", 50)),
        ("backward:1", Shift("backward:1", "backward", 1)),
        ("permuted:25", Shift("permuted:25", "permuted", 25)),
        ("permuted:25:seed3", Shift("permuted:25:seed3", "permuted", 25, seed=3)),
        ("dirichlet:0.1", Shift("dirichlet:0.1", "dirichlet", 0.1)),
        ("dirichlet:1:seed12", Shift("dirichlet:1:seed12", "dirichlet", 1, seed=12)),
        ("tweak:7:0.5", Shift("tweak:7:0.5", "tweak", 0.5, ("7",))),
        ("knock_out:7", Shift("knock_out:7", "knock_out", classes=("7",))),
        ("knock_out:7,3", Shift("knock_out:7,3", "knock_out", classes=("7", "3"))),
        ("tweak:a:b:0.5", Shift("tweak:a:b:0.5", "tweak", 0.5, ("a:b",))),
    ],
)
def test_parse_target__knows_the_names(name, shift):
    assert parse_target(name) == shift


def test_exact_prior__long_tails():
    assert _prior("forward:8") == pytest.approx([1 / 15, 8 / 15, 4 / 15, 2 / 15])
    assert _prior("backward:8") == pytest.approx([8 / 15, 1 / 15, 2 / 15, 4 / 15])
    assert _prior("uniform") == [0.25] * 4


def test_exact_prior__permuted_is_the_tail_in_another_order():
    counts, present = torch.arange(30), torch.ones(30, dtype=torch.bool)
    found = _prior("permuted:8", present, counts)
    assert sorted(found) == pytest.approx(sorted(_prior("forward:8", present, counts)))
    assert found == _prior("permuted:8:seed0", present, counts)
    assert found != _prior("permuted:8:seed1", present, counts)
    assert found == _prior("permuted:8", present, counts.flip(0))


def test_exact_prior__dirichlet_is_a_draw_of_its_seed():
    expected = np.random.default_rng(3).dirichlet([0.5] * 4)
    assert _prior("dirichlet:0.5:seed3") == pytest.approx(expected.tolist())


def test_exact_prior__a_large_alpha_is_nearly_uniform():
    assert _prior("dirichlet:1e6") == pytest.approx([0.25] * 4, abs=0.001)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.7])
def test_exact_prior__tweak_gives_one_class_its_share(share):
    rest = (1 - share) / 3
    assert _prior(f"tweak:1:{share}") == pytest.approx([rest, share, rest, rest])


def test_exact_prior__knock_out_leaves_the_others_alike():
    assert _prior("knock_out:0,2") == [0, 0.5, 0, 0.5]


def test_exact_prior__classes_that_the_test_set_lacks():
    present = torch.tensor([True, False, True, True])
    assert _prior("forward:4", present) == pytest.approx([1 / 7, 0, 4 / 7, 2 / 7])
    assert _prior("tweak:0:0.5", present) == pytest.approx([0.5, 0, 0.25, 0.25])
    assert _prior("knock_out:0,1", present) == [0, 0, 0.5, 0.5]
    assert _prior("dirichlet:1", present)[1] == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "uniform:3",
            "`target` must be like uniform, with nothing behind it, "
            "but is 'uniform:3'.",
        ),
        (
            "backward:0.5",
            "`target` must be like backward:RATIO, with a ratio >= 1, "
            "but is 'backward:0.5'.",
        ),
        (
            "forward:nan",
            "`target` must be like forward:RATIO, with a ratio >= 1, "
            "but is 'forward:nan'.",
        ),
        (
            "permuted:5:3",
            None,
        ),
        (
            "permuted:5:seed-3",
            "`target` must be like permuted:RATIO, with a ratio >= 1 and perhaps "
            ":seedN, but is 'permuted:5:seed-3'.",
        ),
        (
            "dirichlet:0",
            "`target` must be like dirichlet:ALPHA, with α > 0 and perhaps :seedN, "
            "but is 'dirichlet:0'.",
        ),
        (
            "tweak:3",
            "`target` must be like tweak:CLASS:SHARE, with a class and a share "
            "between 0 and 1, but is 'tweak:3'.",
        ),
        (
            "tweak:3:1",
            "`target` must be like tweak:CLASS:SHARE, with a class and a share "
            "between 0 and 1, but is 'tweak:3:1'.",
        ),
        (
            "knock_out:a,,b",
            "`target` must be like knock_out:CLASS,CLASS, with classes, "
            "but is 'knock_out:a,,b'.",
        ),
    ],
)
def test_parse_target__refuses_with_a_sentence(name, message):
    if message is None:
        message = (
            "`target` must be like permuted:RATIO, with a ratio >= 1 and perhaps "
            f":seedN, but is {name!r}."
        )
    with pytest.raises(ValueError, match=re.escape(name)) as error:
        parse_target(name)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "present", "message"),
    [
        (
            "tweak:4:0.5",
            ALL,
            "Target 'tweak:4:0.5' names class 4, but there are 4 classes, 0 to 3.",
        ),
        (
            "tweak:1:0.5",
            torch.tensor([True, False, True, True]),
            "Target 'tweak:1:0.5' needs samples of class 1, but the test set has none.",
        ),
        (
            "knock_out:0,1,2,3",
            ALL,
            "Target 'knock_out:0,1,2,3' must leave a class of the test set.",
        ),
    ],
)
def test_exact_prior__refuses_with_a_sentence(name, present, message):
    with pytest.raises(ValueError, match="Target") as error:
        exact_prior(name, COUNTS, present.long())
    assert str(error.value) == message


def test_exact_prior__shares_by_hand():
    assert _prior("0.1,0.2,0.3,0.4") == pytest.approx([0.1, 0.2, 0.3, 0.4])
    names = ["cat", "dog", "emu, grey", "fox"]
    found = exact_prior("emu, grey=0.5,cat=0.3", COUNTS, 9, class_names=names)
    assert found.tolist() == pytest.approx([0.3, 0.1, 0.5, 0.1])
    assert _prior("0=1") == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0.1,0.2,0.3", "shares between 0 and 1 that sum to 1, .* the sum 0.6"),
        ("0.5,0.5", "has 2 shares but there are 4 classes"),
        ("0=0.7,1=0.6", "be at most 1 in total"),
        ("0=0.1,1=0.1,2=0.1,3=0.1", "names every class.* must sum to 1"),
        ("cat=0.5", "names class cat, but there are 4 classes"),
        ("a=0.5,b=x=0.3", "`target` must be like CLASS=SHARE"),
        ("bakward:10", "Did you mean 'backward:10'?"),
        ("Knock-Out:3", "Did you mean 'knock_out:3'?"),
    ],
)
def test_exact_prior__rejects_wrong_shares_and_names(name, message):
    with pytest.raises(ValueError, match=message):
        _prior(name)


def test_exact_prior__shares_need_samples_of_their_class():
    present = torch.tensor([True, True, True, False])
    assert _prior("0=0.5", present) == pytest.approx([0.5, 0.25, 0.25, 0])
    with pytest.raises(ValueError, match="needs samples of class 3"):
        _prior("3=0.5", present)
