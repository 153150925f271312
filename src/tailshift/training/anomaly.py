"""Losses and gradients that are not finite: where they come up."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class NonFiniteLossError(FloatingPointError):
    """A loss that is NaN or infinite.

    Args:
        loss: The value.
        step: Of the stage, counted from 0.
        epoch: Counted from 1.
        sample_ids: The batch's positions in the training split.

    Example:
        >>> print(NonFiniteLossError(float("nan"), 7, 2, [30, 4]))
        the loss is nan at step 7 (epoch 2, samples 30, 4). Train again with a lower \
optim.lr.
    """

    def __init__(
        self, loss: float, step: int, epoch: int, sample_ids: Sequence[int]
    ) -> None:
        self.step, self.epoch, self.sample_ids = step, epoch, list(sample_ids)
        ids = ", ".join(str(sample) for sample in self.sample_ids[:8])
        more = " …" if len(self.sample_ids) > 8 else ""
        super().__init__(
            f"the loss is {loss} at step {step} (epoch {epoch}, samples {ids}{more}). "
            "Train again with a lower optim.lr."
        )


@contextmanager
def detecting_anomalies(model: nn.Module, step: Callable[[], int]) -> Iterator[None]:
    """Name the part of a model, or the operation, that gave the first NaN.

    Forward, the first module whose output is not finite is named; backward, PyTorch's
    anomaly detection names the operation, and warns of the line that called it. Both
    make training slower.

    Args:
        model: Whose modules are watched.
        step: Tells the step under way, for the message.
    """
    first: list[str] = []
    hooks = [
        module.register_forward_hook(_watch(name or "the model", first))
        for name, module in model.named_modules()
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        detection = torch.autograd.set_detect_anomaly(True)
    try:
        with detection:
            yield
    except FloatingPointError as error:
        if first:
            error.args = (f"{error} The first value not finite came from {first[0]}.",)
        raise
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        raise FloatingPointError(
            f"a gradient is nan at step {step()}: {str(error).splitlines()[0]} "
            "Train again with a lower optim.lr."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _watch(name: str, first: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, given: Any, output: Any) -> None:
        if first or not isinstance(output, Tensor) or output.isfinite().all():
            return
        first.append(f"`{name}` ({type(module).__name__})")

    return look
