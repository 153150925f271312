"""Losses of a batch that is spread over processes: the value and gradient of the whole.

Data-parallel training averages the gradients of all processes. Everything here is made
so that this average, and that of the values, is exactly what one process would get for
the whole batch, also if the processes' parts differ in size or are empty.
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
    """The processes that train together; by default this one alone.

    Example:
        >>> Processes().mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """

    world_size: int = 1
    """W, how many."""

    max_samples: int = 0
    """The most samples that one of them has in a batch; all must state the same."""

    group: Any = None
    """Their process group; None is the default one."""

    known: "KnownLabels | None" = field(default=None, repr=False, compare=False)
    """Labels of a batch that are known without communication; see :meth:`knowing`."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient, on all of them."""
        total = values.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """Return the values (…) of all processes, (W, …), without gradient."""
        return self.start_gather(values)()

    def start_gather(self, values: Tensor) -> Callable[[], Tensor]:
        """Send the values, and return what waits for :meth:`gather`'s result.

        Meanwhile this process can compute.
        """
        if self.world_size == 1:
            return lambda: values.detach()[None]
        everyone = values.new_empty(self.world_size * values.numel())
        mine = values.detach().contiguous().flatten()
        work = dist.all_gather_into_tensor(
            everyone, mine, group=self.group, async_op=True
        )
        assert work is not None  # this process is of the group

        def wait() -> Tensor:
            work.wait()
            return everyone.view(self.world_size, *values.shape)

        return wait

    def differentiable_sum(self, values: Tensor) -> Tensor:
        r"""Return the sum over processes; only the own part has a gradient here.

        It is W times the gradient of the result, which must be the same on all
        processes: averaged over them, each part has its gradient once.
        """
        total: Tensor = _Sum.apply(values, self)
        return total

    def share(self, labels: Tensor, like: Tensor) -> Tensor:
        r"""Return :math:`W n / N`, what this process's mean counts in their average.

        Args:
            labels: The :math:`n` of this process; all of them have :math:`N`.
            like: Gives dtype and device.

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
            num_samples: :math:`N`, if it is known; else the processes sum it.
        """
        if self.world_size == 1:
            return values.mean(0)
        if num_samples is None:
            num_samples = self.sum(values.new_tensor(float(len(values))))
        return values.sum(0) * (self.world_size / num_samples)

    def knowing(self, labels: Tensor, everyone: Tensor | None) -> "Processes":
        """Return these processes, for a batch whose labels are all known beforehand.

        For this very tensor :meth:`labels` and :meth:`share` then send nothing. All
        processes must know them, or none.

        Args:
            labels: Labels of this process, shape (n,).
            everyone: Labels of all processes in any order, shape (N,); None if unknown.
        """
        known = None if everyone is None else KnownLabels(labels, everyone)
        return replace(self, known=known)

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels of all processes, in no certain order.

        If they are not known, each process sends `max_samples`, filled up by −1.

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


class KnownLabels(NamedTuple):
    """Labels of a batch: this process's and all."""

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
    """Return whether this process holds a share of a tensor alone."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """Return a tensor that is spread over processes as each of them would hold it all.

    All processes must ask for it.
    """
    return value.full_tensor() if is_sharded(value) else value


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state with all weights whole; all processes must ask for it."""
    return {name: whole(value) for name, value in module.state_dict().items()}


def load_whole_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fill a module, whose weights may be sharded, from a state that is whole."""
    held = module.state_dict()
    fitted = {
        name: as_held(value, held[name]) if name in held else value
        for name, value in state.items()
    }
    module.load_state_dict(fitted)


def as_held(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as this process holds `like`: itself, or its share."""
    if not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
