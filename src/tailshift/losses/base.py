"""Base class of all losses; its docstring says how to write one."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from tailshift.losses.reduction import Reduction
from tailshift.priors import VectorLike, as_prior
from tailshift.processes import Processes
from tailshift.registry import Registry

LOSSES: Registry[Callable[..., nn.Module]] = Registry("loss", nn.Module)
"""The modules that methods train with; each is a form of a function beside it."""

LossFunction: TypeAlias = Callable[[Any, Tensor], Tensor]
"""Maps a network's output and labels (N,) to a scalar, or to one value per sample."""


class Loss(nn.Module):
    r"""Base of all losses: what training may ask of one, with defaults.

    A loss states ``forward(output, labels)``. The output is what the head gives in
    training: logits (N, C), or a named tuple that has them as ``logits``, such as
    :class:`~tailshift.models.ExpertOutput`. It states more only if it can do more:

    - :meth:`class_losses`, if the loss for each possible label has a closed form. Label
      smoothing needs it.
    - :attr:`logit_prior`, so that a trained model can be re-targeted with
      :meth:`PostCompensated.from_loss <tailshift.models.PostCompensated.from_loss>`.
    - :attr:`spans_batch` and :meth:`over_processes`, if it is not a mean over samples.
    - :meth:`begin_epoch`, if something changes with the epoch. What an interrupted run
      must find again, and cannot compute from the epoch, is a buffer.

    Floating-point buffers move with the module but keep their float64 (float32 on a
    device that has no float64): a prior rounded to half precision, as ``.half()`` or
    ``.to(bfloat16)`` would leave it, is wrong in the third digit and may be 0 for the
    rarest classes. Cast them in ``forward``, as in ``self.weights.to(logits)``.

    A function, or a module of another base, is taken as a loss too; see
    :func:`as_loss`.

    Example:
        >>> class MarginLoss(Loss):  # of the true class over the best other one
        ...     def forward(self, output, labels):
        ...         return torch.nn.functional.multi_margin_loss(output, labels)
        >>> loss, logits = MarginLoss(), torch.tensor([[2.0, 1.5], [0.0, 1.0]])
        >>> loss(logits, torch.tensor([0, 1]))
        tensor(0.1250)
        >>> loss.spans_batch, loss.takes_soft_targets
        (False, False)
    """

    reduction: Reduction = "mean"
    """How ``forward`` reduces the losses of the samples."""

    spans_batch: bool = False
    """Whether the loss looks at the whole batch, so that it is no mean over samples."""

    @property
    def logit_prior(self) -> Tensor | Literal["source"] | None:
        """Prior of the logits that the loss trains, shape (C,).

        It is ``"source"`` if it is the prior of the training data and the loss does not
        know that prior, and None if it is unknown.
        """
        return None

    @property
    def takes_soft_targets(self) -> bool:
        """Whether :meth:`class_losses` is stated, as label smoothing needs it."""
        return type(self).class_losses is not Loss.class_losses

    def class_losses(self, output: Any) -> Tensor:
        r"""Return :math:`\ell(f(x_i), c)` for each sample and each class, shape (N, C).

        A loss with a part that looks at the whole batch leaves that part out.

        By default the rows of logits are repeated C times: one call on N·C rows, C
        times the work, and only for a loss of ``reduction="none"``.

        Args:
            output: Logits :math:`f`, shape (N, C), or what else the loss takes.
        """
        num_samples, num_classes = output.shape
        rows = output[:, None].expand(-1, num_classes, -1).reshape(-1, num_classes)
        labels = torch.arange(num_classes, device=output.device).repeat(num_samples)
        losses: Tensor = self(rows, labels)  # (N·C,)
        if losses.shape != labels.shape:
            raise ValueError(
                f"`loss` must give one value per sample, but gave shape "
                f"{tuple(losses.shape)} for {len(labels)}. "
                "Make it with reduction='none'."
            )
        return losses.view(num_samples, num_classes)

    def over_processes(
        self, output: Any, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages over processes to the loss of all their samples.

        By default the mean over this process's samples, weighted by
        :meth:`Processes.share <tailshift.losses.Processes.share>`.

        Args:
            output: The network's, for this process's samples: logits (n, C), or a
                tuple of tensors.
            labels: Class indices, shape (n,); n may be 0, but not on all processes.
            processes: The processes that train together.
        """
        if self.spans_batch:
            raise NotImplementedError(
                f"{type(self).__name__} looks at the whole batch, so it must state "
                "`over_processes`."
            )
        tensors = [output] if isinstance(output, Tensor) else list(output)
        share = processes.share(labels, like=tensors[0])
        return share * self(output, labels) if len(labels) else _nothing(tensors)

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Get ready for an epoch; by default nothing changes.

        What it sets must depend on the arguments alone: a resumed run begins anywhere.
        A loss made of other losses calls theirs.

        Args:
            epoch: The epoch, counted from 0 in each stage.
            num_epochs: Epochs of the stage.
        """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every .to(), .cuda() and .half() of a module comes through here. The exact
        # buffers are moved here and hidden from PyTorch, which would also cast them.
        exact = {
            name: _moved(buffer, fn)
            for name, buffer in self._buffers.items()
            if buffer is not None and buffer.is_floating_point()
        }
        self._buffers.update(dict.fromkeys(exact))
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch's
        finally:
            self._buffers.update(exact)
        return self


def _moved(buffer: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a buffer on the device that `fn` moves to, as exact as that allows."""
    device = fn(torch.empty(0, device=buffer.device)).device
    return buffer.to(device, torch.float32 if device.type == "mps" else torch.float64)


def _nothing(tensors: Iterable[Tensor]) -> Tensor:
    """Return 0, at which all that the tensors were made of has the gradient 0."""
    return torch.stack([tensor.flatten()[:0].sum() for tensor in tensors]).sum()


class PriorLoss(Loss):
    """Base of the losses that carry a prior; it is checked here, once, and a buffer.

    Args:
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
    """

    source_prior: Tensor

    def __init__(self, source_prior: VectorLike) -> None:
        super().__init__()
        self.register_buffer("source_prior", as_prior(source_prior, positive=True))

    def log_prior(self, logits: Tensor) -> Tensor:
        r"""Return :math:`\log p_s` in the dtype of the widened ``logits``."""
        return self.source_prior.to(logits.dtype).log()

    def extra_repr(self) -> str:
        """Say for how many classes the prior is."""
        return f"num_classes={len(self.source_prior)}"


def as_loss(loss: LossFunction) -> Loss:
    """Return a :class:`Loss` as it is, and anything else that can be called as one.

    A function, or a module of another base such as ``nn.CrossEntropyLoss``, is taken
    for a mean over samples. If it has methods or attributes of a :class:`Loss` under
    the same names (``class_losses``, ``over_processes``, ``begin_epoch``,
    ``reduction``), they are used.

    Example:
        >>> as_loss(nn.CrossEntropyLoss(reduction="sum")).reduction
        'sum'
    """
    return loss if isinstance(loss, Loss) else _OtherLoss(loss)


class _OtherLoss(Loss):
    """A function or a module of another base: the one place that looks into it."""

    def __init__(self, function: LossFunction) -> None:
        super().__init__()
        self.function = function
        self.reduction = getattr(function, "reduction", "mean")
        self._class_losses = getattr(function, "class_losses", None)
        self._over_processes = getattr(function, "over_processes", None)
        self.spans_batch = self._over_processes is not None

    @property
    def takes_soft_targets(self) -> bool:
        return self._class_losses is not None

    def forward(self, output: Any, labels: Tensor) -> Tensor:
        return self.function(output, labels)

    def class_losses(self, output: Any) -> Tensor:
        closed_form = self._class_losses or super().class_losses
        losses: Tensor = closed_form(output)
        return losses

    def over_processes(
        self, output: Any, labels: Tensor, processes: Processes
    ) -> Tensor:
        joined = self._over_processes or super().over_processes
        value: Tensor = joined(output, labels, processes)
        return value

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        function = self.function
        parts = function.modules() if isinstance(function, nn.Module) else [function]
        for part in parts:
            begin: Any = getattr(part, "begin_epoch", None)
            if begin is not None:
                begin(epoch, num_epochs)
