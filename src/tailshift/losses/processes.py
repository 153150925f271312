"""Losses of a batch that is spread over processes: the value and gradient of the whole.

Data-parallel training averages the gradients of all processes. Everything here is made
so that this average, and that of the values, is exactly what one process would get for
the whole batch, also where the processes' parts differ in size or are empty.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tailshift.losses.class_statistics import ClassStatistics
from tailshift.losses.soft_targets import Loss


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

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient, on all of them."""
        total = values.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """Return the values (…) of all processes, (W, …), without gradient."""
        if self.world_size == 1:
            return values.detach()[None]
        everyone = values.new_empty(self.world_size * values.numel())
        mine = values.detach().contiguous().flatten()
        dist.all_gather_into_tensor(everyone, mine, group=self.group)
        return everyone.view(self.world_size, *values.shape)

    def differentiable_sum(self, values: Tensor) -> Tensor:
        r"""Return the sum over processes; only the own part has a gradient here.

        It is W times the gradient of the result, which must be the same on all
        processes: averaged over them, each part has its gradient once.
        """
        total: Tensor = _Sum.apply(values, self)
        return total

    def share(self, num_samples: int, like: Tensor) -> Tensor:
        r"""Return :math:`W n / N`, what this process's mean counts in their average.

        Args:
            num_samples: :math:`n`, of this process; all of them have :math:`N`.
            like: Gives dtype and device.

        Example:
            >>> Processes().share(5, torch.zeros(()))
            tensor(1.)
        """
        n = like.new_tensor(float(num_samples))
        return self.world_size * n / self.sum(n)

    def mean(self, values: Tensor) -> Tensor:
        r"""Return :math:`\frac{W}{N} \sum_i v_i`, which averages to the mean of all.

        Args:
            values: Of each sample of this process, shape (n, …), n may be 0.
        """
        num_samples = self.sum(values.new_tensor(float(len(values))))
        return values.sum(0) * (self.world_size / num_samples)

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels of all processes, (W · `max_samples`,), filled up by −1.

        Example:
            >>> Processes(max_samples=3).labels(torch.tensor([5, 2]))
            tensor([ 5,  2, -1])
        """
        missing = self.max_samples - len(labels)
        if missing < 0:
            raise ValueError(
                f"`labels` must be at most `max_samples`, {self.max_samples}, but are "
                f"{len(labels)}."
            )
        filled = torch.cat([labels, labels.new_full((missing,), -1)])
        return self.gather(filled).flatten()

    def reduce(
        self, own: ClassStatistics, labels: Tensor, *, classes: Tensor | None
    ) -> ClassStatistics:
        r"""Return the statistics of all processes' samples together.

        .. math:: \log \sum_r e^{a_{rc}}, \quad \sum_r b_{rc}, \quad n_c

        for the log-sum-exps :math:`a` and the positive sums :math:`b`. A process sends
        these two numbers for each class that is looked at, and no logits. Backwards
        nothing is sent: the gradient of a process's own :math:`a_{rc}` is
        :math:`W e^{a_{rc} - a_c}` times that of the result, of its :math:`b_{rc}` it is
        :math:`W` times, as for :meth:`differentiable_sum`.

        Args:
            own: Of this process.
            labels: Of all, as :meth:`labels` gives them.
            classes: As :func:`~tailshift.losses.class_statistics.class_statistics` was
                given them, the same on all processes; None for all.
        """
        if classes is not None and 2 * len(classes) > len(own.counts):
            classes = None  # all were worked on
        log_sum_exp, positive_sums = _Reduction.apply(
            own.log_sum_exp, own.positive_sums, classes, self
        )
        is_there = (labels >= 0).to(own.counts.dtype)
        counts = torch.zeros_like(own.counts)
        counts.index_add_(0, labels.clamp(min=0), is_there)
        return ClassStatistics(log_sum_exp, positive_sums, counts)


def loss_over_processes(
    loss: Loss, output: Any, labels: Tensor, processes: Processes
) -> Tensor:
    r"""Return what averages over processes to the loss of all their samples.

    A loss that spans the batch says itself how, in ``over_processes``. Any other is
    taken for a mean over samples, and weighted by :meth:`Processes.share`.

    Args:
        loss: Module of this package, or function of output and labels.
        output: Of the network for this process's samples: logits (n, C), or a tuple.
        labels: Class indices, shape (n,); n may be 0, but not on all processes.
        processes: Those that train together.

    Example:
        >>> from tailshift.losses import CrossEntropyLoss
        >>> logits, labels = torch.zeros(2, 4), torch.tensor([0, 3])
        >>> loss_over_processes(CrossEntropyLoss(), logits, labels, Processes())
        tensor(1.3863)
    """
    spanning = getattr(loss, "over_processes", None)
    if spanning is not None:
        value: Tensor = spanning(output, labels, processes)
        return value
    tensors = [output] if isinstance(output, Tensor) else list(output)
    share = processes.share(len(labels), like=tensors[0])
    return share * loss(output, labels) if len(labels) else _nothing(tensors)


def _nothing(tensors: Iterable[Tensor]) -> Tensor:
    """Return 0, at which all that the tensors were made of has the gradient 0."""
    return torch.stack([tensor.flatten()[:0].sum() for tensor in tensors]).sum()


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, processes: Processes) -> Tensor:
        ctx.world_size = processes.world_size
        return processes.sum(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.world_size * grad, None


class _Reduction(Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_sum_exp: Tensor,
        positive_sums: Tensor,
        classes: Tensor | None,
        processes: Processes,
    ) -> tuple[Tensor, Tensor]:
        own = torch.stack([log_sum_exp, positive_sums])  # (2, C)
        sent = own if classes is None else own.index_select(1, classes)  # (2, K)
        everyone = processes.gather(sent)  # (W, 2, K)
        reduced = torch.stack([everyone[:, 0].logsumexp(0), everyone[:, 1].sum(0)])
        if classes is not None:
            reduced = torch.zeros_like(own).index_copy(1, classes, reduced)
        total, sums = reduced
        ctx.save_for_backward((log_sum_exp - total).exp())  # e^{a_rc − a_c}
        ctx.world_size = processes.world_size
        return total, sums

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_total: Tensor, grad_sums: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        (ratio,) = ctx.saved_tensors
        of_own = ctx.world_size * grad_total * ratio
        return of_own, ctx.world_size * grad_sums, None, None
