"""Mixup of images and of losses."""

import math

import pytest
import torch
import torch.nn.functional as F

from tailshift import priors
from tailshift.losses import cross_entropy_loss, lade_loss, mixup, mixup_loss


def _reference_mixup(images, share, permutation):
    mixed = torch.empty_like(images)
    for i, j in enumerate(permutation.tolist()):
        mixed[i] = share * images[i] + (1 - share) * images[j]
    return mixed


def test_mixup__agrees_with_the_loop():
    images, labels = torch.randn(6, 3, 4, 4).double(), torch.arange(6)
    permutation = torch.tensor([3, 0, 5, 4, 1, 2])
    mixed, others = mixup(images, labels, 0.3, permutation)
    expected = _reference_mixup(images, 0.3, permutation)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-10)
    assert others.tolist() == permutation.tolist()


def test_mixup__shares_of_1_and_0_are_the_images_themselves():
    images, labels = torch.randn(4, 3) * 1e6, torch.arange(4)
    permutation = torch.tensor([1, 2, 3, 0])
    assert torch.equal(mixup(images, labels, 1.0, permutation)[0], images)
    assert torch.equal(mixup(images, labels, 0.0, permutation)[0], images[permutation])


def test_mixup_loss__worked_example():
    """Logits log 3 and 0, labels 0 and 1, share ¼: ¼ log 4/3 + ¾ log 4."""
    logits = torch.tensor([[3.0, 1.0]]).log()
    loss = mixup_loss(
        cross_entropy_loss, logits, torch.tensor([0]), torch.tensor([1]), 0.25
    )
    assert loss.item() == pytest.approx(math.log(4 / 3) / 4 + 3 * math.log(4) / 4)


def test_mixup_loss__is_the_cross_entropy_of_mixed_labels():
    logits, labels = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 0, 0, 1])
    others = labels.flip(0)
    targets = 0.3 * F.one_hot(labels, 3) + 0.7 * F.one_hot(others, 3)
    torch.testing.assert_close(
        mixup_loss(cross_entropy_loss, logits, labels, others, 0.3),
        F.cross_entropy(logits, targets.double()),
    )


def test_mixup_loss__takes_a_loss_of_the_whole_batch():
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 0, 1])
    p_s = priors.from_counts([50, 10, 5])

    def loss(f, y):
        return lade_loss(f, y, p_s, alpha=0.1, lam=0.1)

    assert mixup_loss(loss, logits, labels, labels.flip(0), 1.0) == loss(logits, labels)
    torch.testing.assert_close(
        mixup_loss(loss, logits, labels, labels, 0.4), loss(logits, labels)
    )


def test_mixup__says_what_is_wrong():
    images, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        mixup(images, labels, 1.5, torch.tensor([1, 0]))
    assert str(error.value) == "`share` must lie in [0, 1], but is 1.5."
    with pytest.raises(ValueError, match=r"^`") as error:
        mixup_loss(cross_entropy_loss, images, labels, labels, -0.5)
    assert str(error.value) == "`share` must lie in [0, 1], but is -0.5."
    with pytest.raises(TypeError) as kind:
        mixup(images.to(torch.uint8), labels, 0.5, torch.tensor([1, 0]))
    assert str(kind.value) == (
        "`images` must be floating point, but is torch.uint8. Normalise them first."
    )
