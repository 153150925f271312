"""What a loss may do beyond `forward`: its defaults, and functions taken as losses."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.losses import (
    CrossEntropyLoss,
    LabelAwareSmoothing,
    Loss,
    SoftTargetLoss,
    as_loss,
    cross_entropy_loss,
    loss_over_processes,
    smoothed_loss,
    soft_target_loss,
)
from tailshift.processes import Processes

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
LABELS = torch.tensor([0, 3, 1, 1, 2, 0])


class _Outer(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vector", torch.tensor([1e-9, 1.0], dtype=torch.float64))
        self.register_buffer("counts", torch.tensor([3, 5]))
        self.register_buffer("nothing", None)
        self.temperature = nn.Parameter(torch.ones(()))
        self.inner = nn.Linear(2, 2)


def test_loss__casts_what_is_inside_but_not_its_vectors() -> None:
    module = _Outer().half()
    assert module.get_buffer("vector").tolist() == [1e-9, 1.0]
    assert module.get_buffer("counts").dtype == torch.int64
    assert module.nothing is None
    assert module.temperature.dtype == torch.float16
    assert module.inner.weight.dtype == torch.float16


def test_loss__moves_with_all_that_is_inside() -> None:
    module = _Outer().to("meta")
    tensors = module.state_dict()
    assert set(tensors) == {
        "vector",
        "counts",
        "temperature",
        "inner.weight",
        "inner.bias",
    }
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}
    assert module.get_buffer("vector").dtype == torch.float64


@dataclass(frozen=True)
class _OneOfTwo(Processes):
    """Two processes, of which the other has two samples; nothing is sent."""

    world_size: int = 2

    def sum(self, values: Tensor) -> Tensor:
        return values.detach() + 2


class _Own(nn.Module):
    """A loss of another base, with none of the hooks."""

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)


class _Knowing(_Own):
    """A loss of another base, with all of the hooks."""

    reduction = "sum"

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[tuple[int, int]] = []

    def class_losses(self, output: Tensor) -> Tensor:
        return -F.log_softmax(output, dim=1)

    def over_processes(
        self, output: Tensor, labels: Tensor, processes: Processes
    ) -> Tensor:
        return output.new_tensor(42.0)

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        self.epochs.append((epoch, num_epochs))


@pytest.mark.parametrize("loss", [cross_entropy_loss, _Own(), nn.CrossEntropyLoss()])
def test_as_loss__anything_that_can_be_called(loss: Any) -> None:
    """It is a mean over samples: 6 of the 8 samples of two processes count 2 · 6/8."""
    taken, expected = as_loss(loss), F.cross_entropy(LOGITS, LABELS)
    torch.testing.assert_close(taken(LOGITS, LABELS), expected)
    shared = loss_over_processes(loss, LOGITS, LABELS, _OneOfTwo())
    torch.testing.assert_close(shared, 1.5 * expected)
    assert not taken.spans_batch
    assert not taken.takes_soft_targets
    taken.begin_epoch(3, 10)  # nothing changes, nothing fails


def test_as_loss__is_the_loss_itself() -> None:
    loss = CrossEntropyLoss()
    assert as_loss(loss) is loss
    assert loss.takes_soft_targets


def test_as_loss__uses_the_hooks_that_are_there() -> None:
    own = _Knowing()
    loss = as_loss(own)
    assert loss.reduction == "sum"
    assert loss.spans_batch
    assert loss.takes_soft_targets
    assert torch.equal(loss.class_losses(LOGITS), own.class_losses(LOGITS))
    assert loss_over_processes(own, LOGITS, LABELS, _OneOfTwo()) == 42


@pytest.mark.parametrize(
    "made_of",
    [
        lambda own: own,
        nn.Sequential,  # a module of another base, around it
        lambda own: LabelAwareSmoothing(own, [5, 3, 2, 1]),
        SoftTargetLoss,
    ],
    ids=["itself", "module", "smoothing", "soft targets"],
)
def test_begin_epoch__reaches_the_loss_inside(made_of: Any) -> None:
    own = _Knowing()
    as_loss(made_of(own)).begin_epoch(2, 7)
    assert own.epochs == [(2, 7)]


def test_smoothed_loss__sums_where_a_module_of_another_base_does() -> None:
    """Smoothing is linear in the losses: the sum of each sample's alone."""
    own = nn.CrossEntropyLoss(reduction="sum")
    each = [
        smoothed_loss(CrossEntropyLoss(), f[None], y[None], [0.4, 0.3, 0.2, 0.1])
        for f, y in zip(LOGITS, LABELS, strict=True)
    ]
    with pytest.raises(ValueError, match="one value per sample"):
        smoothed_loss(own, LOGITS, LABELS, [0.4, 0.3, 0.2, 0.1])  # no closed form
    own.class_losses = CrossEntropyLoss().class_losses  # type: ignore[assignment] # one
    total = smoothed_loss(own, LOGITS, LABELS, [0.4, 0.3, 0.2, 0.1])
    torch.testing.assert_close(total, torch.stack(each).sum())


class _Spanning(Loss):
    """A loss of the whole batch that does not say what several processes do."""

    spans_batch = True

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        return output.sum().square()


def test_loss__of_a_whole_batch_must_state_over_processes() -> None:
    """A weighted mean of the processes' values would be another loss."""
    with pytest.raises(NotImplementedError) as error:
        loss_over_processes(_Spanning(), LOGITS, LABELS, _OneOfTwo())
    assert str(error.value) == (
        "_Spanning looks at the whole batch, so it must state `over_processes`."
    )


@pytest.mark.parametrize(
    "loss", [_Spanning(), LabelAwareSmoothing(_Spanning(), [5, 3, 2, 1]), _Knowing()]
)
def test_soft_target_loss__refuses_a_loss_of_the_whole_batch(loss: Any) -> None:
    with pytest.raises(TypeError) as error:
        soft_target_loss(loss, LOGITS, LOGITS.softmax(1))
    assert str(error.value) == (
        f"`loss` must be a mean over samples, but {type(loss).__name__} looks at the "
        "whole batch. Use mixup_loss or smoothed_loss."
    )
