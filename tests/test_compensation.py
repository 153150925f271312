import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tailshift import priors
from tailshift.compensation import (
    log_prior_ratio,
    post_compensate,
)


def _random_prior(generator, num_classes):
    return priors.from_counts(generator.random(num_classes) + 0.01)


def _reference(probs, p_trained, p_t):
    """Eq. 5: multiply each probability by p_t / p_trained and renormalise."""
    result = np.empty_like(probs)
    for i, row in enumerate(probs):
        scaled = [p * t / s for p, s, t in zip(row, p_trained, p_t, strict=True)]
        result[i] = [value / sum(scaled) for value in scaled]
    return result


def test_post_compensate__by_hand():
    """2 − log 0.8 + log 0.5 = 1.5300 and 1 − log 0.2 + log 0.5 = 1.9163."""
    logits = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    result = post_compensate(logits, logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    torch.testing.assert_close(
        result, torch.tensor([[1.5299963, 1.9162907]]).double(), atol=1e-6, rtol=0
    )


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_post_compensate__equals_reweighted_probabilities(seed, num_classes):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(5, num_classes))
    p_s, p_t = (_random_prior(generator, num_classes).numpy() for _ in range(2))
    compensated = post_compensate(logits, logit_prior=p_s, target_prior=p_t)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    result = torch.from_numpy(compensated).softmax(-1).numpy()
    np.testing.assert_allclose(result, _reference(probs, p_s, p_t), atol=1e-12)


def test_post_compensate__to_the_same_prior_is_the_identity():
    logits, p = torch.randn(4, 3), priors.from_counts([5, 3, 2])
    result = post_compensate(logits, logit_prior=p, target_prior=p)
    assert torch.equal(result, logits)


def test_post_compensate__two_steps_are_one():
    generator = np.random.default_rng(0)
    a, b, c = (_random_prior(generator, 6) for _ in range(3))
    logits = torch.randn(4, 6, dtype=torch.float64)
    once = post_compensate(logits, logit_prior=a, target_prior=b)
    twice = post_compensate(once, logit_prior=b, target_prior=c)
    direct = post_compensate(logits, logit_prior=a, target_prior=c)
    torch.testing.assert_close(twice, direct)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_post_compensate__keeps_the_dtype(dtype):
    logits = torch.zeros(2, 2, dtype=dtype)
    result = post_compensate(logits, logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    assert result.dtype == dtype


def test_post_compensate__numpy_in_numpy_out():
    logits = np.zeros((2, 2), dtype=np.float32)
    result = post_compensate(logits, logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    assert np.array_equal(logits, np.zeros((2, 2)))


def test_post_compensate__zero_target_makes_a_class_impossible():
    logits = torch.tensor([[9.0, 1.0, 0.0], [torch.inf, 0.0, 0.0]])
    result = post_compensate(
        logits, logit_prior=[0.5, 0.3, 0.2], target_prior=[0.0, 0.5, 0.5]
    )
    assert (result[:, 0] == -torch.inf).all()
    probs = result.softmax(-1)
    assert (probs[:, 0] == 0).all()
    assert torch.isfinite(probs).all()


def test_post_compensate__zero_in_both_priors_is_allowed():
    result = post_compensate(
        torch.zeros(1, 2), logit_prior=[0.0, 1.0], target_prior=[0.0, 1.0]
    )
    assert result.tolist() == [[-torch.inf, 0.0]]


def test_post_compensate__a_thousand_long_tailed_classes_do_not_underflow():
    p_s = priors.from_counts(priors.long_tailed_counts(10**8, 10**8, 1000))
    p_t = p_s.flip(0)
    result = post_compensate(
        torch.randn(3, 1000), logit_prior=p_s, target_prior=p_t
    ).softmax(-1)
    assert torch.isfinite(result).all()
    torch.testing.assert_close(result.sum(-1), torch.ones(3))


def test_post_compensate__has_the_gradient_of_the_logits():
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda f: post_compensate(
            f, logit_prior=[0.5, 0.3, 0.2], target_prior=[0.2, 0.3, 0.5]
        ),
        logits,
    )


def test_post_compensate__refuses_a_class_it_was_not_trained_on():
    with pytest.raises(ValueError, match="logit_prior") as error:
        post_compensate(
            torch.zeros(1, 2), logit_prior=[1.0, 0.0], target_prior=[0.5, 0.5]
        )
    assert str(error.value) == (
        "`logit_prior` must be positive where `target_prior` is, but is 0 for "
        "class 1: logits trained without a class cannot answer for it."
    )


def test_post_compensate__refuses_wrong_lengths_and_types():
    with pytest.raises(ValueError, match="entries") as error:
        post_compensate(
            torch.zeros(1, 3), logit_prior=[0.5, 0.5], target_prior=[1 / 3] * 3
        )
    assert str(error.value) == (
        "`logit_prior` has 2 entries but `logits` has 3 classes."
    )
    with pytest.raises(TypeError, match="logits") as error:
        post_compensate([[0.0]], logit_prior=[1.0], target_prior=[1.0])
    assert str(error.value) == (
        "`logits` must be a torch tensor or a NumPy array, but is list."
    )
    with pytest.raises(TypeError, match="logits") as error:
        post_compensate(
            torch.zeros(1, 1, dtype=torch.int64),
            logit_prior=[1.0],
            target_prior=[1.0],
        )
    assert str(error.value) == (
        "`logits` must be floating point with the classes in the last dimension, "
        "but is torch.int64 of shape (1, 1)."
    )


def test_log_prior_ratio__is_minus_infinity_without_target_mass():
    ratio = log_prior_ratio([0.5, 0.5], [0.0, 1.0], num_classes=2)
    assert ratio[0] == -torch.inf
    assert ratio.dtype == torch.float64


def test_post_compensate__large_logits_in_half_precision():
    """One number in 32 lies at 65000; a shift of all changes no probability."""
    logits = torch.tensor([[65000.0, 64990.0], [3.0, 2.0]]).half()
    given = {"logit_prior": [0.99, 0.01], "target_prior": [0.01, 0.99]}
    expected = post_compensate(logits.double(), **given).softmax(dim=1)
    found = post_compensate(logits, **given)
    assert found.dtype == torch.float16
    torch.testing.assert_close(
        found.double().softmax(dim=1), expected, rtol=1e-2, atol=1e-4
    )
    assert found[0].argmax() == 1


def test_post_compensate__infinite_logits_in_half_precision():
    logits = torch.tensor([[torch.inf, 3.0, 65504.0], [-torch.inf, 1.0, 65504.0]])
    found = post_compensate(
        logits.half(), logit_prior=[0.2, 0.2, 0.6], target_prior=[0.6, 0.2, 0.2]
    )
    assert found.softmax(dim=1).tolist() == [[1, 0, 0], [0, 0, 1]]
