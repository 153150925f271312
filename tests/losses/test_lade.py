"""LADE: Eq. 20 from its two parts."""

import math

import pytest
import torch

from tailshift import priors
from tailshift.losses import LADELoss, balanced_softmax_loss, lade_loss, lader

MODES = ["paper", "self_normalised", "all_classes", "official"]


def _batch(num_samples, num_classes, dtype=torch.float64):
    g = torch.Generator().manual_seed(num_classes)
    logits = 3 * torch.randn(num_samples, num_classes, generator=g, dtype=dtype)
    labels = torch.randint(num_classes, (num_samples,), generator=g)
    counts = priors.long_tailed_counts(500, 50, num_classes)
    return logits, labels, priors.from_counts(counts)


def test_lade_loss__worked_example():
    """One sample of class 0, f = 0, p_s = (0.8, 0.2).

    LADE-CE = −log 0.8; the weight is 0.5/0.8, so T = log 0.625, and
    LADER = 0.8 · (−0 + T + 0.5 · T²).
    """
    t = math.log(0.625)
    expected = -math.log(0.8) + 0.1 * 0.8 * (t + 0.5 * t**2)
    logits, labels = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    value = lade_loss(logits, labels, [0.8, 0.2], alpha=0.1, lam=0.5)
    assert value.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 40), (32, 6)])
def test_lade_loss__is_the_sum_of_its_parts(mode, shape):
    logits, labels, p_s = _batch(*shape)
    alpha_c = torch.rand(shape[1])
    settings = {"lam": 0.2, "mode": mode, "class_weights": alpha_c}
    logits.requires_grad_()
    whole = lade_loss(logits, labels, p_s, alpha=0.3, **settings)
    parts = balanced_softmax_loss(logits, labels, p_s) + 0.3 * lader(
        logits, labels, p_s, **settings
    )
    torch.testing.assert_close(whole, parts)
    torch.testing.assert_close(
        torch.autograd.grad(whole, logits), torch.autograd.grad(parts, logits)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 40), (16, 6)])
def test_lade_loss__gradient_is_exact(mode, shape):
    logits, labels, p_s = _batch(*shape)

    def loss(f):
        return lade_loss(f, labels, p_s, alpha=0.3, lam=0.2, mode=mode)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lade_loss__without_regulariser_is_balanced_softmax_to_the_last_bit(dtype):
    logits, labels, p_s = _batch(64, 20, torch.float32)
    logits = logits.to(dtype).requires_grad_()
    losses = [
        balanced_softmax_loss(logits, labels, p_s),
        lade_loss(logits, labels, p_s, alpha=0.0, lam=0.1),
        LADELoss(p_s, alpha=0, lam=0.1)(logits, labels),
    ]
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in losses]
    assert losses[0] == losses[1] == losses[2]
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("mode", MODES)
def test_lade_loss__huge_logits(mode):
    _, labels, p_s = _batch(8, 10)
    signs = torch.randn(8, 10).sign()
    for scale in (1e4, -1e4):
        logits = (scale * signs).requires_grad_()
        loss = lade_loss(logits, labels, p_s, alpha=0.1, lam=0.5, mode=mode)
        loss.backward()
        assert loss.isfinite()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_lade_loss__a_hundred_thousand_classes(mode):
    logits, labels, p_s = _batch(4, 100_000, torch.float32)
    logits.requires_grad_()
    settings = {"alpha": 0.1, "lam": 0.01, "mode": mode}
    loss = lade_loss(logits, labels, p_s, **settings)
    loss.backward()
    assert logits.grad.isfinite().all()
    exact = lade_loss(logits.detach().double(), labels, p_s, **settings)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lade_loss__autocast_sums_in_float32(mode, dtype):
    """The loss of half-precision logits is the float32 loss of the same numbers."""
    features, labels, p_s = _batch(32, 6, torch.float32)
    head = torch.nn.Linear(6, 6)
    loss = LADELoss(p_s, alpha=0.1, lam=0.1, mode=mode)
    with torch.autocast("cpu", dtype=dtype):
        logits = head(features)
        value = loss(logits, labels)
    value.backward()
    assert logits.dtype == dtype
    assert value.dtype == torch.float32
    assert head.weight.grad.isfinite().all()
    assert value.item() == loss(logits.detach().float(), labels).item()


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_lade_loss__a_batch_of_one_class(lam):
    logits, _, p_s = _batch(8, 6)
    labels = torch.full((8,), 5)
    loss = lade_loss(logits.requires_grad_(), labels, p_s, alpha=0.1, lam=lam)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_lade_module__equals_the_function_with_class_weights():
    logits, labels, p_s = _batch(8, 6)
    settings = {"alpha": 0.2, "lam": 0.1, "mode": "official", "class_weights": [1] * 6}
    assert LADELoss(p_s, **settings)(logits, labels) == lade_loss(
        logits, labels, p_s, **settings
    )


def test_lade_loss__refuses_a_negative_alpha():
    sentence = "`alpha` must be finite and not negative, but is -1."
    with pytest.raises(ValueError, match=r"^`") as error:
        lade_loss(torch.zeros(1, 2), torch.tensor([0]), [0.5, 0.5], alpha=-1, lam=0.1)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        LADELoss([0.5, 0.5], alpha=-1, lam=0.1)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lam": -2.0}, "`lam` must be finite and not negative, but is -2.0."),
        (
            {"lam": 0.1, "mode": "both"},
            "`mode` must be 'paper', 'self_normalised', 'all_classes' or 'official', "
            "but is 'both'.",
        ),
        (
            {"lam": 0.1, "class_weights": [1.0]},
            "`class_weights` must have shape (2,), one for each entry of "
            "`source_prior`, but has shape (1,).",
        ),
    ],
)
def test_lade_module__checks_its_settings_when_made(settings, sentence):
    with pytest.raises(ValueError, match=r"^`") as error:
        LADELoss([0.5, 0.5], alpha=0.1, **settings)
    assert str(error.value) == sentence


def test_lade_module__refuses_logits_of_another_size():
    with pytest.raises(ValueError, match=r"^`") as error:
        LADELoss([0.5, 0.5], alpha=0.1, lam=0.1)(torch.zeros(1, 3), torch.tensor([0]))
    assert str(error.value) == (
        "`source_prior` has 2 entries but `logits` has 3 classes."
    )


@pytest.mark.parametrize("label", [3, -1])
def test_lade_loss__refuses_a_label_that_is_no_class(label):
    loss = LADELoss([0.5, 0.3, 0.2], alpha=0.1, lam=0.1)
    with pytest.raises(ValueError, match="labels") as error:
        loss(torch.zeros(2, 3), torch.tensor([0, label]))
    assert str(error.value) == (
        f"`labels` must lie in 0..2, but {label} is among them."
    )
