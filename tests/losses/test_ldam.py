"""LDAM's margins, its loss, and its weights that come late."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift.losses import (
    LDAMLoss,
    class_balanced_weights,
    cross_entropy_loss,
    ldam_loss,
    ldam_margins,
)


def _reference_ldam(cosines, y, counts, *, max_margin, scale, weights):
    largest = max(n**-0.25 for n in counts)
    losses = []
    for i, row in enumerate(cosines):
        m = max_margin * counts[y[i]] ** -0.25 / largest
        z = [scale * (row[c] - (m if c == y[i] else 0)) for c in range(len(row))]
        total = sum(math.exp(value) for value in z)
        losses.append(-weights[y[i]] * math.log(math.exp(z[y[i]]) / total))
    return losses


def test_ldam_margins__worked_example():
    """16 times the samples: half of the margin."""
    assert ldam_margins([16, 1, 81]).tolist() == pytest.approx([0.25, 0.5, 0.5 / 3])
    assert ldam_margins([16, 1], max_margin=0.3).tolist() == pytest.approx([0.15, 0.3])


def test_ldam_loss__worked_example():
    """s = 1, cosines 0 and margin ½: log(1 + e^½)."""
    loss = ldam_loss(torch.zeros(1, 2), torch.tensor([1]), [16, 1], scale=1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.5)))


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 7), st.floats(0.5, 30.0)
)
def test_ldam_loss__agrees_with_the_loop(seed, num_samples, num_classes, scale):
    g = torch.Generator().manual_seed(seed)
    cosines = 2 * torch.rand(num_samples, num_classes, generator=g).double() - 1
    y = torch.randint(num_classes, (num_samples,), generator=g)
    counts = torch.randint(1, 1000, (num_classes,), generator=g)
    w = torch.rand(num_classes, generator=g).double()
    expected = _reference_ldam(
        cosines.tolist(),
        y.tolist(),
        counts.tolist(),
        max_margin=0.4,
        scale=scale,
        weights=w.tolist(),
    )
    losses = ldam_loss(
        cosines,
        y,
        counts,
        max_margin=0.4,
        scale=scale,
        class_weights=w,
        reduction="none",
    )
    torch.testing.assert_close(losses, cosines.new_tensor(expected), rtol=0, atol=1e-10)


def test_ldam_loss__margin_0_and_scale_1_is_cross_entropy_of_cosines():
    cosines, labels = 2 * torch.rand(8, 5) - 1, torch.arange(8) % 5
    loss = ldam_loss(cosines, labels, [90, 30, 9, 3, 1], max_margin=0.0, scale=1.0)
    torch.testing.assert_close(loss, cross_entropy_loss(cosines, labels))


def test_ldam_loss__a_rare_class_must_win_by_more():
    cosines, counts = torch.tensor([[0.5, 0.5]]), [160, 10]
    frequent = ldam_loss(cosines, torch.tensor([0]), counts)
    rare = ldam_loss(cosines, torch.tensor([1]), counts)
    assert rare > frequent > ldam_loss(cosines, torch.tensor([1]), counts, max_margin=0)


def test_ldam_module__takes_weights_late_and_saves_them():
    counts = [500, 60, 7]
    cosines, labels = 2 * torch.rand(6, 3) - 1, torch.tensor([0, 0, 0, 1, 1, 2])
    loss = LDAMLoss(counts)
    assert loss.class_weights.tolist() == [1.0, 1.0, 1.0]
    assert loss(cosines, labels) == ldam_loss(cosines, labels, counts)
    weights = class_balanced_weights(counts)
    loss.set_class_weights(weights)
    expected = ldam_loss(cosines, labels, counts, class_weights=weights)
    assert loss(cosines, labels) == expected

    other = LDAMLoss(counts)
    other.load_state_dict(loss.state_dict())
    assert set(loss.state_dict()) == {"margins", "class_weights"}
    assert other(cosines, labels) == expected
    assert LDAMLoss(counts, class_weights=weights)(cosines, labels) == expected
    assert repr(loss) == "LDAMLoss(num_classes=3, max_margin=0.5, scale=30.0)"


def test_ldam_module__closed_form_keeps_its_digits_when_sure():
    """1 − p of the winning class would round to 0 in float32."""
    cosines = torch.tensor([[0.8, -0.1, -0.2]], requires_grad=True)
    loss = LDAMLoss([100, 10, 1], reduction="none")
    losses = loss.class_losses(cosines)
    for c in range(3):
        expected = loss(cosines.double(), torch.tensor([c]))
        torch.testing.assert_close(losses[:, c].double(), expected, rtol=1e-4, atol=0)
    losses.sum().backward()
    assert cosines.grad.isfinite().all()


@pytest.mark.parametrize(
    ("counts", "settings", "sentence"),
    [
        (
            [5, 2, 0],
            {},
            "`class_counts` must be positive for every class, but is 0 for class 2 "
            "(3 classes). Drop it or give it a sample.",
        ),
        ([5, 2], {}, "`class_counts` has 2 entries but `cosines` has 3 classes."),
        (
            [5, 2, 1],
            {"max_margin": -0.5},
            "`max_margin` must be finite and not negative, but is -0.5.",
        ),
        (
            [5, 2, 1],
            {"scale": 0.0},
            "`scale` must be finite and positive, but is 0.0.",
        ),
    ],
)
def test_ldam_loss__says_what_is_wrong(counts, settings, sentence):
    batch = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        ldam_loss(*batch, counts, **settings)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        LDAMLoss(counts, **settings)(*batch)
    assert str(error.value) == sentence


def test_ldam_loss__refuses_weights_of_another_size():
    with pytest.raises(ValueError, match=r"^`") as error:
        ldam_loss(
            torch.zeros(1, 3), torch.tensor([0]), [5, 2, 1], class_weights=[1.0, 1.0]
        )
    assert str(error.value) == (
        "`class_weights` has 2 entries but `cosines` has 3 classes."
    )
    with pytest.raises(ValueError, match=r"^`") as error:
        LDAMLoss([5, 2, 1]).set_class_weights([1.0, 1.0])
    assert str(error.value) == "`class_weights` has 2 entries but `class_counts` had 3."
