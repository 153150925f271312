import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tailshift import priors
from tailshift.compensation import (
    PostCompensated,
    UncalibratedWarning,
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
    result = post_compensate(logits, trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    torch.testing.assert_close(
        result, torch.tensor([[1.5299963, 1.9162907]]).double(), atol=1e-6, rtol=0
    )


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_post_compensate__equals_reweighted_probabilities(seed, num_classes):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(5, num_classes))
    p_s, p_t = (_random_prior(generator, num_classes).numpy() for _ in range(2))
    compensated = post_compensate(logits, trained_prior=p_s, target_prior=p_t)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    result = torch.from_numpy(compensated).softmax(-1).numpy()
    np.testing.assert_allclose(result, _reference(probs, p_s, p_t), atol=1e-12)


def test_post_compensate__to_the_same_prior_is_the_identity():
    logits, p = torch.randn(4, 3), priors.from_counts([5, 3, 2])
    result = post_compensate(logits, trained_prior=p, target_prior=p)
    assert torch.equal(result, logits)


def test_post_compensate__two_steps_are_one():
    generator = np.random.default_rng(0)
    a, b, c = (_random_prior(generator, 6) for _ in range(3))
    logits = torch.randn(4, 6, dtype=torch.float64)
    once = post_compensate(logits, trained_prior=a, target_prior=b)
    twice = post_compensate(once, trained_prior=b, target_prior=c)
    direct = post_compensate(logits, trained_prior=a, target_prior=c)
    torch.testing.assert_close(twice, direct)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_post_compensate__keeps_the_dtype(dtype):
    logits = torch.zeros(2, 2, dtype=dtype)
    result = post_compensate(logits, trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    assert result.dtype == dtype


def test_post_compensate__numpy_in_numpy_out():
    logits = np.zeros((2, 2), dtype=np.float32)
    result = post_compensate(logits, trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    assert np.array_equal(logits, np.zeros((2, 2)))


def test_post_compensate__zero_target_makes_a_class_impossible():
    logits = torch.tensor([[9.0, 1.0, 0.0], [torch.inf, 0.0, 0.0]])
    result = post_compensate(
        logits, trained_prior=[0.5, 0.3, 0.2], target_prior=[0.0, 0.5, 0.5]
    )
    assert (result[:, 0] == -torch.inf).all()
    probs = result.softmax(-1)
    assert (probs[:, 0] == 0).all()
    assert torch.isfinite(probs).all()


def test_post_compensate__zero_in_both_priors_is_allowed():
    result = post_compensate(
        torch.zeros(1, 2), trained_prior=[0.0, 1.0], target_prior=[0.0, 1.0]
    )
    assert result.tolist() == [[-torch.inf, 0.0]]


def test_post_compensate__a_thousand_long_tailed_classes_do_not_underflow():
    p_s = priors.from_counts(priors.long_tailed_counts(10**8, 10**8, 1000))
    p_t = p_s.flip(0)
    result = post_compensate(
        torch.randn(3, 1000), trained_prior=p_s, target_prior=p_t
    ).softmax(-1)
    assert torch.isfinite(result).all()
    torch.testing.assert_close(result.sum(-1), torch.ones(3))


def test_post_compensate__has_the_gradient_of_the_logits():
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda f: post_compensate(
            f, trained_prior=[0.5, 0.3, 0.2], target_prior=[0.2, 0.3, 0.5]
        ),
        logits,
    )


def test_post_compensate__refuses_a_class_it_was_not_trained_on():
    with pytest.raises(ValueError, match="trained_prior") as error:
        post_compensate(
            torch.zeros(1, 2), trained_prior=[1.0, 0.0], target_prior=[0.5, 0.5]
        )
    assert str(error.value) == (
        "`trained_prior` must be positive where `target_prior` is, but is 0 for "
        "class 1: logits trained without a class cannot answer for it."
    )


def test_post_compensate__refuses_wrong_lengths_and_types():
    with pytest.raises(ValueError, match="entries") as error:
        post_compensate(
            torch.zeros(1, 3), trained_prior=[0.5, 0.5], target_prior=[1 / 3] * 3
        )
    assert str(error.value) == (
        "`trained_prior` has 2 entries but `logits` has 3 classes."
    )
    with pytest.raises(TypeError, match="logits") as error:
        post_compensate([[0.0]], trained_prior=[1.0], target_prior=[1.0])
    assert str(error.value) == (
        "`logits` must be a torch tensor or a NumPy array, but is list."
    )
    with pytest.raises(TypeError, match="logits") as error:
        post_compensate(
            torch.zeros(1, 1, dtype=torch.int64),
            trained_prior=[1.0],
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


class TestPostCompensated:
    def _model(self):
        return PostCompensated(
            nn.Linear(3, 2), trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        )

    def test_equals_the_function(self):
        model, x = self._model(), torch.randn(4, 3)
        expected = post_compensate(
            model.model(x), trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        )
        assert torch.equal(model(x), expected)

    def test_changes_its_target(self):
        model, x = self._model(), torch.randn(4, 3)
        assert model.set_target_prior([0.8, 0.2]) is model
        assert torch.equal(model(x), model.model(x))

    def test_takes_names_and_files(self, tmp_path):
        (tmp_path / "site.json").write_text('{"kiwi": 30, "kea": 10}')
        model = PostCompensated(
            nn.Identity(),
            trained_prior=[0.5, 0.5],
            target_prior="uniform",
            source_counts=[1, 9],
            class_names=["kea", "kiwi"],
        )
        assert model.target_prior.tolist() == [0.5, 0.5]
        for target, first in {
            "backward:3": 0.75,
            "tweak:kiwi:0.25": 0.75,
            "source": 0.1,
            tmp_path / "site.json": 0.25,
        }.items():
            assert model.set_target_prior(target).target_prior[0] == first

    def test_says_how_a_name_gets_its_counts(self):
        with pytest.raises(ValueError, match="source_counts") as error:
            self._model().set_target_prior("backward:10")
        assert str(error.value) == (
            "Target 'backward:10' follows the training counts, which are not known "
            "here. Give `source_counts`, or use 'uniform' or a file of counts."
        )

    def test_state_dict_restores_both_priors(self):
        model, other = self._model(), self._model()
        model.set_target_prior([0.1, 0.9])
        other.load_state_dict(model.state_dict())
        x = torch.randn(4, 3)
        assert torch.equal(other(x), model(x))
        assert torch.equal(other.target_prior, model.target_prior)

    def test_half_precision_keeps_exact_priors(self):
        model = self._model().to(torch.bfloat16)
        model.set_target_prior([0.3, 0.7])
        assert model.target_prior.tolist() == [0.3, 0.7]
        assert model(torch.randn(4, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16

    def test_a_refused_target_changes_nothing(self):
        model, x = self._model(), torch.randn(4, 3)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="sum to 1"):
            model.set_target_prior([0.5, 0.9])
        assert torch.equal(model.log_ratio, before["log_ratio"])
        assert model(x).shape == (4, 2)

    def test_refuses_a_model_with_other_classes(self):
        model = PostCompensated(
            nn.Identity(), trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        )
        with pytest.raises(ValueError, match="entries") as error:
            model(torch.zeros(1, 3))
        assert str(error.value) == (
            "`target_prior` has 2 entries but `logits` has 3 classes."
        )


def _shifted(p_t, num_samples=4000, seed=0):
    """Return logits that carry a uniform prior, of samples whose prior is p_t."""
    rng = np.random.default_rng(seed)
    y = rng.choice(len(p_t), size=num_samples, p=p_t)
    x = rng.normal(size=(num_samples, len(p_t))) + 1.5 * np.eye(len(p_t))[y]
    return torch.from_numpy(1.5 * x).float()  # log-likelihoods, up to a constant


class _Known:
    """An estimator that keeps what it is given, and answers as it was told."""

    def __init__(self, prior):
        self.prior = prior

    def estimate(self, logits):
        self.logits = logits
        return self.prior


def _served(model=None, **settings):
    uniform = priors.uniform(3)
    return PostCompensated(
        model or nn.Identity(), trained_prior=uniform, target_prior=uniform, **settings
    )


def test_adapt__asks_the_estimator_and_answers_for_what_it_says():
    estimator = _Known([0.2, 0.3, 0.5])
    model = _served()
    model.set_target_prior([0.8, 0.1, 0.1])  # must not reach the estimator
    f = _shifted([0.2, 0.3, 0.5], 10)
    assert model.adapt(f.split(3), estimator=estimator) is model
    assert torch.equal(estimator.logits, f)
    assert model.target_prior.tolist() == [0.2, 0.3, 0.5]
    torch.testing.assert_close(
        model(f), f + torch.tensor([0.2, 0.3, 0.5]).mul(3).log(), atol=1e-5, rtol=0
    )


def test_adapt__takes_the_estimator_of_the_constructor_unless_given_another():
    model = _served(estimator=_Known([0.2, 0.3, 0.5]))
    assert model.adapt([_shifted([1, 0, 0], 4)]).target_prior[2] == 0.5
    other = _Known([0.5, 0.3, 0.2])
    assert model.adapt([_shifted([1, 0, 0], 4)], estimator=other).target_prior[2] == 0.2


@pytest.mark.parametrize("kind", [tuple, list])
def test_adapt__reads_no_labels(kind):
    estimator = _Known([0.2, 0.3, 0.5])
    f = _shifted([0.2, 0.3, 0.5], 6)
    _served().adapt((kind([part, None]) for part in f.split(2)), estimator=estimator)
    assert torch.equal(estimator.logits, f)


def test_adapt__evaluates_and_leaves_modes_as_they_were():
    layers = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3))
    layers[0].eval()
    model = _served(layers)
    estimator = _Known([0.2, 0.3, 0.5])
    before = copy.deepcopy(layers.state_dict())
    f = _shifted([0.2, 0.3, 0.5], 6)
    model.adapt(f.split(2), estimator=estimator)
    torch.testing.assert_close(estimator.logits, f, atol=1e-4, rtol=0)
    assert not estimator.logits.requires_grad
    assert [layer.training for layer in layers] == [False, True]
    assert all(torch.equal(layers.state_dict()[key], before[key]) for key in before)


def test_adapt__without_an_estimator_warns_and_takes_the_models_word():
    p_t = [0.1, 0.2, 0.7]
    model = _served()
    with pytest.warns(UncalibratedWarning) as caught:
        model.adapt(_shifted(p_t).split(500))
    assert str(caught[0].message) == (
        "the target prior is estimated from probabilities that were not checked on "
        "held-out data, and may be off. Give `estimator`, such as "
        "MAPEstimator().fit(held_out_logits, labels)."
    )
    torch.testing.assert_close(
        model.target_prior, torch.tensor(p_t).double(), atol=0.03, rtol=0
    )


def _reference_uncalibrated(logits, p_trained):
    """Plain EM with a pseudo-sample a class, around the trained prior."""
    probs, q = logits.double().softmax(dim=1), p_trained
    for _ in range(2000):
        weighted = probs * q / p_trained
        counts = (weighted / weighted.sum(dim=1, keepdim=True)).sum(dim=0)
        q = (counts + len(q) * p_trained) / (len(probs) + len(q))
    return q


@pytest.mark.filterwarnings("ignore::tailshift.compensation.UncalibratedWarning")
def test_adapt__without_an_estimator_is_plain_em():
    p = torch.tensor([0.5, 0.3, 0.2]).double()
    f = _shifted([0.1, 0.2, 0.7], 300) + p.log()
    model = PostCompensated(nn.Identity(), trained_prior=p, target_prior=p)
    expected = _reference_uncalibrated(f, p)
    torch.testing.assert_close(
        model.adapt([f]).target_prior, expected, atol=1e-5, rtol=0
    )


def test_adapt__refuses_an_empty_loader():
    with pytest.raises(ValueError, match="loader") as error:
        _served().adapt([])
    assert str(error.value) == (
        "`loader` must give a batch of images, but gives none. A generator that was "
        "read before is empty."
    )


def test_post_compensate__large_logits_in_half_precision():
    """One number in 32 lies at 65000; a shift of all changes no probability."""
    logits = torch.tensor([[65000.0, 64990.0], [3.0, 2.0]]).half()
    given = {"trained_prior": [0.99, 0.01], "target_prior": [0.01, 0.99]}
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
        logits.half(), trained_prior=[0.2, 0.2, 0.6], target_prior=[0.6, 0.2, 0.2]
    )
    assert found.softmax(dim=1).tolist() == [[1, 0, 0], [0, 0, 1]]
