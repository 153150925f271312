"""The sums over a batch that LADE needs: of each class, and of each sample.

The class sums are all that joins the samples of a batch. Several processes add up
theirs (log-sum-exps by log-add-exp, the others by addition), and take from the result
the loss of the global batch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tailshift.processes import Processes


class ClassStatistics(NamedTuple):
    """Sums over a batch, one entry a class; differentiable but for the counts."""

    log_sum_exp: Tensor
    r""":math:`\log \sum_i w_i e^{f_{ic}}`, shape (C,); 0 if not asked for."""
    positive_sums: Tensor
    r""":math:`\sum_{i: y_i = c} f_{ic}`, shape (C,)."""
    counts: Tensor
    r""":math:`n_c`, samples of each class, as floats, shape (C,)."""


def class_statistics(
    logits: Tensor,
    labels: Tensor,
    log_weights: Tensor,
    *,
    is_present_only: bool = False,
) -> ClassStatistics:
    r"""Return the sums of a batch for each class.

    Args:
        logits: :math:`f` in float32 or float64, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        log_weights: :math:`\log w_i`, a constant for each sample, shape (N,).
        is_present_only: Whether the log-sum-exp is wanted of the classes in ``labels``
            alone. If they are far fewer than C, only those columns are worked on.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]])
        >>> labels = torch.tensor([0, 0])
        >>> class_statistics(logits, labels, torch.zeros(2)).positive_sums
        tensor([4., 0., 0.])
    """
    _, statistics = log_probs_and_statistics(
        logits, labels, None, log_weights, is_present_only=is_present_only
    )
    return statistics


def log_probs_and_statistics(
    logits: Tensor,
    labels: Tensor,
    log_prior: Tensor | None,
    log_weights: Tensor,
    *,
    is_present_only: bool = False,
    processes: Processes | None = None,
) -> tuple[Tensor, ClassStatistics]:
    r"""Return :math:`\log p_s(y_i|x_i)` of each sample (N,), and the class statistics.

    Both come from one node of the autograd graph, whose backward pass writes their
    gradients into one tensor. It cannot be differentiated twice.

    Several processes get the statistics of all their samples. Each sends its two
    numbers for each class that is looked at, and no logits, while it computes the
    log-probabilities; backwards nothing is sent. The statistics' gradients must be the
    same on all processes: averaged over them, each sample has its own once.

    Args:
        logits: As in :func:`class_statistics`, and so the other arguments.
        labels: Class indices, shape (N,).
        log_prior: :math:`\log p_s`, shape (C,); ``None`` leaves the log-probabilities
            out (they are returned as zeros).
        log_weights: Shape (N,).
        is_present_only: As there; with several processes, in the labels of any.
        processes: The processes that share the batch; N is this one's part, may be 0.
    """
    processes = processes or Processes()
    everyone = processes.labels(labels)
    present = everyone if processes.world_size == 1 else everyone.clamp(min=0)
    # Picking most columns would cost more than taking them all.
    is_picked = is_present_only and 2 * len(present) <= logits.shape[1]
    log_probs, log_sum_exp, positive_sums = _BatchSums.apply(
        logits,
        labels,
        log_prior,
        log_weights,
        present if is_picked else None,
        processes,
    )
    counts = _count(present, everyone >= 0, logits)
    return log_probs, ClassStatistics(log_sum_exp, positive_sums, counts)


def _count(labels: Tensor, is_there: Tensor, like: Tensor) -> Tensor:
    # torch.bincount would make the host wait for the largest label.
    zeros = like.new_zeros(like.shape[1])
    return zeros.index_add_(0, labels, is_there.to(like.dtype))  # (C,)


def _column_sums(
    f: Tensor, log_w: Tensor, classes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms w_i e^{f_ic} over their largest, their sums, and its log."""
    if classes is None:
        columns = f + log_w[:, None]  # (N, C)
    else:
        columns = f.index_select(1, classes).add_(log_w[:, None])  # (N, K)
    # Without a sample amax would fail; e^(−∞) = 0 adds nothing to the others' sums.
    nothing = columns.new_full(columns.shape[1:], -math.inf)
    peak = columns.amax(0) if len(f) else nothing
    terms = columns.sub_(peak).exp_()  # in [0, 1]
    return terms, terms.sum(0), peak  # a sum is at least 1: its log is safe


def _start_join(
    log_sum_exp: Tensor,
    positive_sums: Tensor,
    classes: Tensor | None,
    processes: Processes,
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Send this process's sums, (K,) and (C,); what is returned waits for all's."""
    if processes.world_size == 1:
        return lambda: (log_sum_exp, positive_sums)
    of_classes = positive_sums
    if classes is not None:
        of_classes = positive_sums.index_select(0, classes)
    wait = processes.start_gather(torch.stack([log_sum_exp, of_classes]))

    def join() -> tuple[Tensor, Tensor]:
        everyone = wait()  # (W, 2, K)
        total, sums = everyone[:, 0].logsumexp(0), everyone[:, 1].sum(0)
        if classes is not None:
            # Written, not added: a class that is asked for twice was sent twice.
            sums = torch.zeros_like(positive_sums).scatter_(0, classes, sums)
        return total, sums

    return join


class _BatchSums(Function):
    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        y: Tensor,
        log_p_s: Tensor | None,
        log_w: Tensor,
        classes: Tensor | None,
        processes: Processes,
    ) -> tuple[Tensor, Tensor, Tensor]:
        terms, sums, peak = _column_sums(f, log_w, classes)  # (N, K), (K,), (K,)
        log_sum_exp = peak + sums.log()
        own = f.gather(1, y[:, None]).squeeze(1)  # f_i[y_i], (N,)
        positive_sums = f.new_zeros(f.shape[1]).index_add_(0, y, own)
        join = _start_join(log_sum_exp, positive_sums, classes, processes)
        if log_p_s is None:
            log_probs, own_log_probs = None, f.new_zeros(len(f))
        else:  # while the sums are on their way
            log_probs = F.log_softmax(f + log_p_s, dim=1)  # (N, C)
            own_log_probs = log_probs.gather(1, y[:, None]).squeeze(1)  # (N,)
        log_sum_exp, positive_sums = join()
        if processes.world_size > 1:
            # All samples' sum, over this process's peak, as the terms are. Divided by
            # W it makes gradients W times as large, which averaging takes back.
            sums = (log_sum_exp - peak).exp() / processes.world_size
        if classes is not None:
            log_sum_exp = f.new_zeros(f.shape[1]).scatter_(0, classes, log_sum_exp)
            # The columns of a class that is asked for twice share its gradient.
            sums = sums * _count(classes, classes >= 0, f).index_select(0, classes)
        ctx.save_for_backward(log_probs, terms, sums, y, classes)
        ctx.num_classes, ctx.world_size = f.shape[1], processes.world_size
        return own_log_probs, log_sum_exp, positive_sums

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_rows: Tensor, grad_columns: Tensor, grad_positive: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        log_probs, terms, sums, y, classes = ctx.saved_tensors
        # The sums of positives are over all processes: W times, as in forward.
        own = ctx.world_size * grad_positive.index_select(0, y)  # (N,)
        if log_probs is None:
            grad = terms.new_zeros(len(y), ctx.num_classes)
        else:
            # d log p_y / d f_c = [y = c] − p_c: the second here, the first in `own`.
            grad = log_probs.exp().mul_(-grad_rows[:, None])
            own = own + grad_rows
        if classes is None:
            grad.addcmul_(terms, grad_columns / sums)  # a softmax over samples
        else:
            shares = grad_columns.index_select(0, classes) / sums
            grad.index_add_(1, classes, terms * shares)
        grad.scatter_add_(1, y[:, None], own[:, None])
        return grad, None, None, None, None, None
