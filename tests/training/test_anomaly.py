"""A value that is not finite is traced to where it came up."""

import re

import pytest
import torch
from torch import Tensor, nn

from tailshift.runs.directory import NotFiniteError
from tailshift.training.loop import TrainingPosition, detect_anomalies


class _Root(nn.Module):
    """√x: at 0 the value is finite and the gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt()


PLACE = TrainingPosition(4, 1, [5])


def test_not_finite__names_few_samples_and_keeps_all() -> None:
    error = NotFiniteError("the loss is inf", TrainingPosition(12, 3, range(9)))
    assert str(error) == (
        "the loss is inf at step 12 (epoch 3, samples 0, 1, 2, 3, 4, 5, 6, 7 …). "
        "Train again with a lower optim.lr."
    )
    assert error.place.sample_ids == range(9)


def test_detecting_anomalies__names_the_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
    with torch.no_grad():
        model[1][1].weight.fill_(torch.nan)

    def train() -> None:
        with detect_anomalies(model, lambda: PLACE):
            loss = model(torch.ones(3, 2)).sum()
            raise NotFiniteError(f"the loss is {loss.item()}", PLACE)

    with pytest.raises(NotFiniteError) as error:
        train()
    assert str(error.value) == (
        "the loss is nan at step 4 (epoch 1, samples 5). Train again with a lower "
        "optim.lr. The first non-finite value came from `1.1` (Linear)."
    )
    assert not any(module._forward_hooks for module in model.modules())
    assert not torch.is_anomaly_enabled()


def test_detecting_anomalies__names_the_operation_of_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2), _Root())

    def train() -> None:
        with detect_anomalies(model, lambda: PLACE):
            model(torch.ones(3, 2)).sum().backward()

    with (
        pytest.warns(UserWarning, match="Traceback of forward call"),
        pytest.raises(NotFiniteError) as error,
    ):
        train()
    assert re.fullmatch(
        r"a gradient is nan at step 4 \(epoch 1, samples 5\): Function 'MulBackward0' "
        r"returned nan values in its 0th output\. Train again with a lower optim\.lr\.",
        str(error.value),
    )


def test_detecting_anomalies__leaves_other_errors() -> None:
    with (
        pytest.raises(RuntimeError, match="power cut"),
        detect_anomalies(nn.Linear(1, 1), lambda: PLACE),
    ):
        raise RuntimeError("power cut")
