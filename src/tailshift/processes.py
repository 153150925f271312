"""Losses over several processes: values and gradients of the whole batch.

Data-parallel training averages the gradients of all processes. With these functions the
averages of gradients and values are exactly those of one process with the whole batch,
also if the processes' parts differ in size or are empty.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Processes:
    """Processes that train together; by default only this one.

    Example:
        >>> Processes().mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """

    world_size: int = 1
    """Number of processes W."""

    max_samples: int = 0
    """Maximum number of samples per process and batch, equal on all processes."""

    group: Any = None
    """Process group; None for the default group."""

    known: "_KnownLabels | None" = field(default=None, repr=False, compare=False)
    """Labels of a batch that need no communication; see :meth:`knowing`."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient."""
        total = values.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """Return the values (…) of all processes, (W, …), without gradient."""
        return self.start_gather(values)()

    def start_gather(self, values: Tensor) -> Callable[[], Tensor]:
        """Start to gather; return a function that waits for :meth:`gather`'s result.

        This process can compute in the meantime.
        """
        if self.world_size == 1:
            return lambda: values.detach()[None]
        everyone = values.new_empty(self.world_size * values.numel())
        mine = values.detach().contiguous().flatten()
        work = dist.all_gather_into_tensor(
            everyone, mine, group=self.group, async_op=True
        )
        assert work is not None  # this process is in the group

        def wait() -> Tensor:
            work.wait()
            return everyone.view(self.world_size, *values.shape)

        return wait

    def differentiable_sum(self, values: Tensor) -> Tensor:
        r"""Return the sum over processes; only this process's part has a gradient.

        The gradient is W times that of the result, which must be equal on all
        processes. Averaged over the processes, each part then counts once.
        """
        total: Tensor = _Sum.apply(values, self)
        return total

    def share(self, labels: Tensor, like: Tensor) -> Tensor:
        r"""Return :math:`W n / N`, the weight of this process's mean in the average.

        Args:
            labels: The :math:`n` labels of this process; all processes have :math:`N`.
            like: Tensor with the dtype and device of the result.

        Example:
            >>> Processes().share(torch.tensor([5, 2]), torch.zeros(()))
            tensor(1.)
        """
        n = like.new_tensor(float(len(labels)))
        everyone = self._known_labels(labels)
        total = self.sum(n) if everyone is None else len(everyone)
        return self.world_size * n / total

    def mean(self, values: Tensor, num_samples: Tensor | None = None) -> Tensor:
        r"""Return :math:`\frac{W}{N} \sum_i v_i`, which averages to the mean of all.

        Args:
            values: Value of each sample of this process, shape (n, …), n may be 0.
            num_samples: :math:`N` if known; otherwise the processes sum it.
        """
        if self.world_size == 1:
            return values.mean(0)
        if num_samples is None:
            num_samples = self.sum(values.new_tensor(float(len(values))))
        return values.sum(0) * (self.world_size / num_samples)

    def knowing(self, labels: Tensor, everyone: Tensor | None) -> "Processes":
        """Return these processes with known labels of all processes for a batch.

        :meth:`labels` and :meth:`share` then send nothing for this tensor. Either all
        processes know the labels, or none.

        Args:
            labels: Labels of this process, shape (n,).
            everyone: Labels of all processes in any order, shape (N,); None if unknown.
        """
        known = None if everyone is None else _KnownLabels(labels, everyone)
        return replace(self, known=known)

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels of all processes, in any order.

        If they are not known, each process sends `max_samples` labels, padded with −1.

        Example:
            >>> Processes().labels(torch.tensor([5, 2]))
            tensor([5, 2])
        """
        if self.world_size == 1:
            return labels
        everyone = self._known_labels(labels)
        return self._ask_for_labels(labels) if everyone is None else everyone

    def _known_labels(self, labels: Tensor) -> Tensor | None:
        if self.known is None or self.known.own is not labels:
            return None
        return self.known.everyone

    def _ask_for_labels(self, labels: Tensor) -> Tensor:
        missing = self.max_samples - len(labels)
        if missing < 0:
            raise ValueError(
                f"`labels` must be at most `max_samples`, {self.max_samples}, but are "
                f"{len(labels)}."
            )
        filled = torch.cat([labels, labels.new_full((missing,), -1)])
        return self.gather(filled).flatten()


class _KnownLabels(NamedTuple):
    """Labels of a batch: those of this process and of all."""

    own: Tensor
    everyone: Tensor


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, processes: Processes) -> Tensor:
        ctx.world_size = processes.world_size
        return processes.sum(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.world_size * grad, None


def is_sharded(value: Tensor) -> "TypeGuard[DTensor]":
    """Return whether this process holds only a part of a tensor."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """Return the whole tensor of a sharded one; all processes must call it."""
    return value.full_tensor() if is_sharded(value) else value


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state with whole weights; all processes must call it."""
    return {name: whole(value) for name, value in module.state_dict().items()}


def load_whole_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a whole state into a module whose weights may be sharded."""
    held = module.state_dict()
    fitted = {
        name: as_held(value, held[name]) if name in held else value
        for name, value in state.items()
    }
    module.load_state_dict(fitted)


def as_held(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor sharded like `like`; unchanged if `like` is not sharded."""
    if not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
