"""Losses of batches that several processes share."""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from tailshift.losses.base import Loss, LossFunction, as_loss
from tailshift.processes import Processes


def loss_over_processes(
    loss: LossFunction, output: Any, labels: Tensor, processes: Processes
) -> Tensor:
    r"""Return what averages over processes to the loss of all their samples.

    A :class:`Loss` says how in :meth:`Loss.over_processes`. Any other function is taken
    for a mean over samples, and weighted by :meth:`Processes.share`.

    Args:
        loss: Module of this package, or function of output and labels.
        output: The network's, for this process's samples: logits (n, C), or a tuple.
        labels: Class indices, shape (n,); n may be 0, but not on all processes.
        processes: The processes that train together.

    Example:
        >>> from tailshift.losses import CrossEntropyLoss
        >>> logits, labels = torch.zeros(2, 4), torch.tensor([0, 3])
        >>> loss_over_processes(CrossEntropyLoss(), logits, labels, Processes())
        tensor(1.3863)
    """
    return as_loss(loss).over_processes(output, labels, processes)


class DistributedLoss(Loss):
    r"""Any loss, taken of the batches of all processes that train together.

    In a plain ``DistributedDataParallel`` loop or a ``LightningModule`` each process
    calls it on its own part of the batch. It finds the process group by itself, and the
    gradient that data-parallel training averages is exactly that of the whole batch in
    one process: LADER's sums run over all processes, and parts of unequal size count by
    their samples. Without a process group it is the loss as it is.

    After ``.eval()`` and where no gradient is computed it is the loss of this process's
    samples, without communication: the processes may then have different numbers of
    batches.

    Args:
        loss: Module of this package, or function of output and labels that returns a
            mean over samples.
        max_samples: The most samples that one process has in a batch, the same on all;
            None lets the processes ask each other at each step.
        group: Process group; None for the default one.

    Example:
        >>> from tailshift.losses import LADELoss
        >>> loss = DistributedLoss(LADELoss([0.7, 0.2, 0.1], alpha=0.1, lam=0.01))
        >>> loss(torch.zeros(2, 3), torch.tensor([0, 2]))
        tensor(1.3815)
    """

    def __init__(
        self,
        loss: LossFunction,
        *,
        max_samples: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__()
        self.loss = as_loss(loss)
        if self.loss.reduction != "mean":
            raise ValueError(
                "`loss` must be a mean over samples to be taken over processes, but "
                f"its reduction is {self.loss.reduction!r}."
            )
        self.max_samples, self.group = max_samples, group
        self.spans_batch = self.loss.spans_batch

    @property
    def logit_prior(self) -> Tensor | Literal["source"] | None:
        """The logit prior of the loss inside."""
        return self.loss.logit_prior

    @property
    def takes_soft_targets(self) -> bool:
        """Whether the loss inside has :meth:`class_losses`."""
        return self.loss.takes_soft_targets

    def forward(self, output: Any, labels: Tensor) -> Tensor:
        """Return what averages over processes to the loss of all their samples."""
        processes = self.processes(labels)
        if processes.world_size == 1:
            value: Tensor = self.loss(output, labels)
            return value
        return self.loss.over_processes(output, labels, processes)

    def processes(self, labels: Tensor) -> Processes:
        """Return the processes that this batch is spread over.

        Args:
            labels: Labels of this process, shape (n,).
        """
        is_joint = self.training and torch.is_grad_enabled()
        if not (is_joint and dist.is_available() and dist.is_initialized()):
            return Processes()
        world_size = dist.get_world_size(self.group)
        max_samples = self.max_samples
        if max_samples is None and world_size > 1:
            most = torch.tensor(len(labels), device=labels.device)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
            max_samples = int(most)
        return Processes(world_size, max_samples or 0, self.group)

    def class_losses(self, output: Any) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        return self.loss.class_losses(output)

    def over_processes(
        self, output: Any, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages to the loss of all samples of the given processes."""
        return self.loss.over_processes(output, labels, processes)

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Get the loss inside ready for an epoch."""
        self.loss.begin_epoch(epoch, num_epochs)
