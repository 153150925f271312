"""The nearest class mean against a loop."""

import pytest
import torch
from torch import Tensor

from tailshift.models import ClassMeanHead, LinearHead

LABELS = torch.tensor([0, 2, 1, 0, 0, 2, 1, 0])


class TrainingFeatures:
    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def train(self) -> tuple[Tensor, Tensor]:
        return self.features, self.labels

    def val(self) -> None:
        raise AssertionError("the means are of the training images")


def _begun(features: Tensor, scale: float = 16.0) -> ClassMeanHead:
    head = ClassMeanHead(features.shape[1], 3, scale=scale).to(features)
    head.begin(LinearHead(5, 3), TrainingFeatures(features, LABELS))
    return head


def _reference_distances(train: Tensor, x: Tensor) -> list[list[float]]:
    """Return ‖x̂ − m_c‖² with x̂ centred on the training mean and of length 1."""
    centre = [sum(column) / len(train) for column in train.T.tolist()]

    def direction(row: list[float]) -> list[float]:
        moved = [a - b for a, b in zip(row, centre, strict=True)]
        length = sum(a * a for a in moved) ** 0.5
        return [a / length for a in moved]

    means = []
    for c in range(3):
        own = [
            direction(row.tolist())
            for row, y in zip(train, LABELS, strict=True)
            if y == c
        ]
        means.append([sum(column) / len(own) for column in zip(*own, strict=True)])
    return [
        [
            sum((a - b) ** 2 for a, b in zip(direction(row), m, strict=True))
            for m in means
        ]
        for row in x.tolist()
    ]


def test_class_mean_head__agrees_with_the_loop() -> None:
    train, x = torch.randn(8, 5).double() + 3, torch.randn(6, 5).double() + 3
    expected = -8 * torch.tensor(_reference_distances(train, x), dtype=torch.float64)
    torch.testing.assert_close(_begun(train)(x), expected, rtol=0, atol=1e-10)


def test_class_mean_head__takes_the_nearest_whatever_the_scale() -> None:
    train, x = torch.randn(8, 5), torch.randn(50, 5)
    nearest = torch.tensor(_reference_distances(train, x)).argmin(1)
    for scale in (0.1, 16.0):
        assert torch.equal(_begun(train, scale)(x).argmax(1), nearest)


def test_class_mean_head__images_of_a_class_count_alike_however_many() -> None:
    """Twice the images of a class leave its mean; only the centre moves, here not."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    head = ClassMeanHead(2, 2)
    labels = torch.tensor([0, 0, 1, 1])
    head.begin(LinearHead(2, 2), TrainingFeatures(x, labels))
    means = head.means.clone()
    twice = TrainingFeatures(torch.cat([x, x[:2]]), torch.cat([labels, labels[:2]]))
    head.begin(LinearHead(2, 2), twice)
    assert torch.equal(head.means, means)
    assert head.means.abs().max().item() == pytest.approx(0)
