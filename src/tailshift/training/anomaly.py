"""Losses and gradients that are not finite: where they come up."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Place(NamedTuple):
    """Where in a stage's training something came up.

    Example:
        >>> print(Place(7, 2, (30, 4)))
        step 7 (epoch 2, samples 30, 4)
    """

    step: int
    """Counted from 0."""
    epoch: int
    """Counted from 1."""
    sample_ids: Sequence[int]
    """The batch's positions in the training split."""

    def __str__(self) -> str:
        """Return step, epoch and the first samples."""
        ids = ", ".join(str(sample) for sample in self.sample_ids[:8])
        more = " …" if len(self.sample_ids) > 8 else ""
        return f"step {self.step} (epoch {self.epoch}, samples {ids}{more})"


class NotFiniteError(FloatingPointError):
    """A loss or gradient that is NaN or infinite.

    Args:
        what: It, and its value.
        place: Where it came up.
        reason: What is known of why, a sentence.

    Example:
        >>> print(NotFiniteError("the loss is nan", Place(7, 2, (30, 4))))
        the loss is nan at step 7 (epoch 2, samples 30, 4). Train again with a lower \
optim.lr.
    """

    def __init__(self, what: str, place: Place, reason: str = "") -> None:
        self.place = place
        why = f": {reason}" if reason else "."
        super().__init__(f"{what} at {place}{why} Train again with a lower optim.lr.")


@contextmanager
def detecting_anomalies(model: nn.Module, place: Callable[[], Place]) -> Iterator[None]:
    """Name the part of a model, or the operation, that gave the first NaN.

    Forward, the first module whose output is not finite is named; backward, PyTorch's
    anomaly detection names the operation, and warns of the line that called it. Both
    make training slower.

    Args:
        model: Whose modules are watched.
        place: Tells the step under way, for the message.
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
        reason = str(error).splitlines()[0]
        raise NotFiniteError("a gradient is nan", place(), reason) from error
    finally:
        for hook in hooks:
            hook.remove()


def _watch(name: str, first: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, given: Any, output: Any) -> None:
        if first or not isinstance(output, Tensor) or output.isfinite().all():
            return
        first.append(f"`{name}` ({type(module).__name__})")

    return look
