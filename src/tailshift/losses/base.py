"""What a loss is, the document for writing one, and the checks that all of them share.

Checks look only at shapes and dtypes of logits and labels, so that none makes the host
wait for a device.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailshift.priors import VectorLike, as_prior, as_vector
from tailshift.processes import Processes
from tailshift.registry import Registry

LOSSES: Registry[Callable[..., nn.Module]] = Registry("loss", nn.Module)
"""The modules that methods train with; each is a form of a function beside it."""

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""How the losses of the samples become the loss."""

LossFunction: TypeAlias = Callable[[Any, Tensor], Tensor]
"""Maps a network's output and labels (N,) to a scalar, or to one value per sample."""


class Loss(nn.Module):
    r"""Base of all losses: what training may ask of one, with defaults.

    A loss states ``forward(output, labels)``. The output is what the head gives in
    training: logits (N, C), or a named tuple that has them as ``logits``, such as
    :class:`~tailshift.models.ExpertOutput`. It states more only if it can do more:

    - :meth:`class_losses`, if the loss for each possible label has a closed form. Label
      smoothing needs it.
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


def check_batch(
    logits: Tensor, labels: Tensor, *, name: str = "logits"
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`f` in float32 or wider, and :math:`y` as int64.

    Args:
        logits: Shape (N, C).
        labels: Class indices, shape (N,).
        name: What the loss calls its ``logits``, for error messages.

    Example:
        >>> f, y = check_batch(torch.zeros(2, 3).bfloat16(), torch.tensor([0, 2]))
        >>> f.dtype, y.dtype
        (torch.float32, torch.int64)
    """
    _check_tensor(name, logits)
    _check_tensor("labels", labels)
    f = as_logits(logits, name=name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"`labels` must be class indices, but is {labels.dtype}.")
    if labels.shape != logits.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(logits)},), one for each row of `{name}`, "
            f"but has shape {tuple(labels.shape)}."
        )
    # Elsewhere than on the CPU, reading them would make the host wait.
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_inside(labels, f.shape[1])
    return f, labels.long()


def _check_inside(labels: Tensor, num_classes: int) -> None:
    lowest, highest = (value.item() for value in labels.aminmax())
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"`labels` must lie in 0..{num_classes - 1}, but "
            f"{lowest if lowest < 0 else highest} is among them."
        )


def as_logits(logits: Tensor, *, name: str = "logits") -> Tensor:
    r"""Return :math:`f`, shape (N, C), in float32 or wider.

    Half-precision logits are widened here, once, so that all sums and exponentials of
    a loss run in float32 under autocast too; their gradient comes back in half.
    """
    _check_tensor(name, logits)
    if not logits.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, but is {logits.dtype}.")
    if logits.ndim != 2:
        raise ValueError(
            f"`{name}` must have shape (N, C), but has shape {tuple(logits.shape)}."
        )
    if logits.numel() == 0:
        raise ValueError(
            f"`{name}` must hold at least one sample and one class, "
            f"but has shape {tuple(logits.shape)}. Skip an empty batch."
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a torch tensor, but is {type(value).__name__}."
        )


def check_part(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`check_batch` does, for a part of a batch that may be empty."""
    if logits.ndim == 2 and logits.shape[0] == 0 and labels.shape == (0,):
        f = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return f, labels.long()
    return check_batch(logits, labels)


def check_num_classes(
    name: str, vector: Tensor, logits: Tensor, *, logits_name: str = "logits"
) -> None:
    """Refuse a ``vector`` that has not one entry for each class of ``logits``."""
    if len(vector) != logits.shape[1]:
        raise ValueError(
            f"`{name}` has {len(vector)} entries "
            f"but `{logits_name}` has {logits.shape[1]} classes."
        )


def check_not_negative(name: str, value: float) -> None:
    """Refuse a setting below 0, or one that is not finite.

    Example:
        >>> check_not_negative("gamma", -1.0)
        Traceback (most recent call last):
        ...
        ValueError: `gamma` must be finite and not negative, but is -1.0.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be finite and not negative, but is {value}.")


def check_positive(name: str, value: float) -> None:
    """Refuse a setting that is not above 0, or not finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be finite and positive, but is {value}.")


def check_share(name: str, value: float) -> None:
    """Refuse a setting outside of 0..1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must lie in [0, 1], but is {value}.")


def check_reduction(reduction: str) -> None:
    """Refuse a ``reduction`` that no loss knows.

    Example:
        >>> check_reduction("average")
        Traceback (most recent call last):
        ...
        ValueError: `reduction` must be 'mean', 'sum' or 'none', but is 'average'.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(
            f"`reduction` must be 'mean', 'sum' or 'none', but is {reduction!r}."
        )


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return the mean or sum of one value per sample, shape (N,), or the values."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def as_class_counts(class_counts: VectorLike, *, positive: bool = True) -> Tensor:
    """Return counts as float64 (float32 on a device without it), shape (C,).

    Args:
        class_counts: Training samples of each class, shape (C,).
        positive: Refuse a class without samples.

    Example:
        >>> as_class_counts([500, 0, 20, 0])
        Traceback (most recent call last):
        ...
        ValueError: `class_counts` must be positive for every class, but is 0 for \
classes 1 and 3 (4 classes). Drop them or give them samples.
    """
    n = _as_floats(class_counts, "class_counts")
    if n.device.type != "cpu":
        return n
    _refuse("class_counts", n, ~((n >= 0) & n.isfinite()), "finite and not negative")
    if positive and (n == 0).any():
        empty = (n == 0).nonzero().flatten().tolist()
        remedy = "Drop them or give them samples."
        if len(empty) == 1:
            remedy = "Drop it or give it a sample."
        raise ValueError(
            f"`class_counts` must be positive for every class, but is 0 for "
            f"{_name_classes(empty)} ({len(n)} classes). {remedy}"
        )
    return n


def as_weights(class_weights: VectorLike) -> Tensor:
    """Return class weights as checked float64, shape (C,)."""
    w = _as_floats(class_weights, "class_weights")
    check_class_weights(w)
    return w


def weights_for(
    logits: Tensor, class_weights: VectorLike | None, *, logits_name: str = "logits"
) -> Tensor | None:
    """Return checked weights in the dtype and on the device of widened ``logits``."""
    if class_weights is None:
        return None
    w = as_weights(class_weights)
    check_num_classes("class_weights", w, logits, logits_name=logits_name)
    return w.to(logits)


def check_class_weights(class_weights: Tensor) -> None:
    """Refuse weights below 0 or not finite, on the CPU."""
    if class_weights.device.type == "cpu":
        wrong = ~((class_weights >= 0) & class_weights.isfinite())
        _refuse("class_weights", class_weights, wrong, "finite and not negative")


def weigh(losses: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
    r"""Return :math:`w_{y_i} \ell_i`, shape (N,)."""
    if class_weights is None:
        return losses
    return losses * class_weights.index_select(0, labels)


def _as_floats(values: VectorLike, name: str) -> Tensor:
    vector = as_vector(values, name).detach()
    return vector.to(torch.float32 if vector.device.type == "mps" else torch.float64)


def _refuse(name: str, values: Tensor, wrong: Tensor, rule: str) -> None:
    if wrong.any():
        where = int(wrong.int().argmax())
        raise ValueError(
            f"`{name}` must be {rule}, but is {values[where].item():g} "
            f"for class {where}."
        )


def _name_classes(indices: list[int], most: int = 8) -> str:
    if len(indices) == 1:
        return f"class {indices[0]}"
    if len(indices) > most:
        shown = ", ".join(map(str, indices[:most]))
        return f"classes {shown} and {len(indices) - most} more"
    return f"classes {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
