import copy

import numpy as np
import pytest
import torch
from torch import nn

import tailshift.compensation
from tailshift import priors
from tailshift.compensation import post_compensate
from tailshift.losses import (
    CrossEntropyLoss,
    DistributedLoss,
    FocalLoss,
    LogitAdjustedLoss,
    as_loss,
)
from tailshift.methods import METHODS
from tailshift.models import PostCompensated, UncalibratedWarning


class TestPostCompensated:
    def _model(self):
        return PostCompensated(
            nn.Linear(3, 2), logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        )

    def test_equals_the_function(self):
        model, x = self._model(), torch.randn(4, 3)
        expected = post_compensate(
            model.model(x), logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
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
            logit_prior=[0.5, 0.5],
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
            nn.Identity(), logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
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
        model or nn.Identity(), logit_prior=uniform, target_prior=uniform, **settings
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


@pytest.mark.filterwarnings("ignore::tailshift.models.UncalibratedWarning")
def test_adapt__without_an_estimator_is_plain_em():
    p = torch.tensor([0.5, 0.3, 0.2]).double()
    f = _shifted([0.1, 0.2, 0.7], 300) + p.log()
    model = PostCompensated(nn.Identity(), logit_prior=p, target_prior=p)
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


def test_compensation__still_has_the_class_with_a_warning():
    with pytest.warns(DeprecationWarning, match="tailshift.models.PostCompensated"):
        assert tailshift.compensation.PostCompensated is PostCompensated


P_S = [0.6, 0.3, 0.1]


@pytest.mark.parametrize(
    "method", ["balanced_softmax", "lade", "softmax", "logit_adjustment"]
)
def test_from_loss__takes_the_logit_prior_of_the_method(method):
    """The loss and the method state the same prior, each on its own."""
    counts = torch.tensor([60, 30, 10])
    chosen = METHODS.get(method)()
    model = PostCompensated.from_loss(
        nn.Identity(),
        as_loss(chosen.build_loss(counts)),
        target_prior="uniform",
        source_prior=P_S,
    )
    torch.testing.assert_close(model.logit_prior, chosen.logit_prior(counts))


def test_from_loss__logit_adjusted_by_half():
    loss = LogitAdjustedLoss(P_S, tau=0.5)
    p = torch.tensor(P_S).double().sqrt()
    for stated in (loss, DistributedLoss(loss)):
        model = PostCompensated.from_loss(nn.Identity(), stated, target_prior="uniform")
        torch.testing.assert_close(model.logit_prior, p / p.sum(), rtol=1e-6, atol=0)


def test_from_loss__says_what_is_missing():
    with pytest.raises(ValueError, match="`source_prior` is missing"):
        PostCompensated.from_loss(
            nn.Identity(), CrossEntropyLoss(), target_prior="uniform"
        )
    with pytest.raises(ValueError, match="`loss` must state its logit prior"):
        PostCompensated.from_loss(nn.Identity(), FocalLoss(), target_prior="uniform")
