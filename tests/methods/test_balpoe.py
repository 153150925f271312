"""BalPoE: its experts, its loss and the prior of the mean."""

import pytest
import torch

import tailshift as ts
from tailshift import priors
from tailshift.losses import balpoe_loss, balpoe_priors
from tailshift.methods import SADE, BalPoE
from tailshift.methods.sade import aggregate_prior
from tailshift.models import BranchedBackbone, DigitsNet, ExpertHead, ExpertOutput

COUNTS = torch.tensor([50, 20, 5, 1])


def test_balpoe__has_sades_network() -> None:
    ours, theirs = (method.branch(DigitsNet()) for method in (BalPoE(), SADE()))
    assert isinstance(ours, BranchedBackbone)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }
    head = BalPoE(scale=7.0).build_head(ours.feature_dim, 10)
    assert isinstance(head, ExpertHead)
    assert [expert.scale for expert in head.heads] == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("taus", [(0.0, 1.0, 2.0), (0.5, 1.5)])
def test_balpoe__loss_is_of_the_experts(taus: tuple[float, ...]) -> None:
    experts, labels = torch.randn(len(taus), 6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    loss = BalPoE(taus=taus).build_loss(COUNTS)
    output = ExpertOutput(experts.mean(0), experts)
    expected = balpoe_loss(experts, labels, priors.from_counts(COUNTS), taus=taus)
    torch.testing.assert_close(loss(output, labels), expected)
    by_class = loss.class_losses(output).gather(1, labels[:, None])  # type: ignore[operator]
    torch.testing.assert_close(by_class.mean(), expected)


def test_balpoe__mean_of_the_logits_contains_the_uniform_prior() -> None:
    torch.testing.assert_close(BalPoE().logit_prior(COUNTS), priors.uniform(4))


@pytest.mark.parametrize("taus", [(0.0, 1.0, 2.0), (0.0, 0.5), (0.0, 0.0, 1.0, 3.0)])
def test_balpoe__prior_of_the_mean_by_hand(taus: tuple[float, ...]) -> None:
    """The experts' posteriors, averaged and re-targeted, are those of the target."""
    p_s = priors.from_counts(COUNTS)
    log_likelihood = torch.randn(5, 4, dtype=torch.float64)
    contained = balpoe_priors(p_s, taus=taus)
    mean = (log_likelihood + contained.log()[:, None]).mean(0)
    trained = BalPoE(taus=taus).logit_prior(COUNTS)
    torch.testing.assert_close(
        trained,
        (p_s ** (1 - sum(taus) / len(taus)))
        / (p_s ** (1 - sum(taus) / len(taus))).sum(),
    )
    equal = priors.uniform(len(taus))
    torch.testing.assert_close(trained, aggregate_prior(contained, equal))
    retargeted = ts.post_compensate(
        mean, logit_prior=trained, target_prior=priors.uniform(4)
    )
    torch.testing.assert_close(retargeted.softmax(1), log_likelihood.softmax(1))


def test_balpoe__settings_are_checked() -> None:
    config = ts.load_recipe("digits_lt", ["method.name=balpoe", "method.taus=[0, 2]"])
    assert config.method == BalPoE(taus=(0.0, 2.0))
    with pytest.raises(ValueError, match=r"method\.taus"):
        ts.load_recipe("digits_lt", ["method.name=balpoe", "method.taus=[1]"])
