"""The sums over a batch that LADE needs: of each class, and of each sample.

The class sums are all that joins the samples of a batch. Several processes that add up
theirs (log-sum-exps by log-add-exp, the others by addition) and take the loss from the
result optimise the loss of the global batch.
"""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ClassStatistics(NamedTuple):
    """Sums over a batch, one entry a class; differentiable but for the counts."""

    log_sum_exp: Tensor
    r""":math:`\log \sum_i w_i e^{f_{ic}}`, shape (C,); 0 where not asked for."""
    positive_sums: Tensor
    r""":math:`\sum_{i: y_i = c} f_{ic}`, shape (C,)."""
    counts: Tensor
    r""":math:`n_c`, samples of each class, as floats, shape (C,)."""


def class_statistics(
    logits: Tensor,
    labels: Tensor,
    log_weights: Tensor,
    *,
    classes: Tensor | None = None,
) -> ClassStatistics:
    r"""Return the sums of a batch for each class.

    Args:
        logits: :math:`f` in float32 or float64, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        log_weights: :math:`\log w_i`, a constant for each sample, shape (N,).
        classes: Class indices whose log-sum-exp is wanted, shape (K,), repeats
            allowed; ``None`` for all. Where K is far below C, only those columns are
            worked on. Several processes give the labels of all of them.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]])
        >>> labels = torch.tensor([0, 0])
        >>> class_statistics(logits, labels, torch.zeros(2)).positive_sums
        tensor([4., 0., 0.])
    """
    _, statistics = log_probs_and_statistics(
        logits, labels, None, log_weights, classes=classes
    )
    return statistics


def log_probs_and_statistics(
    logits: Tensor,
    labels: Tensor,
    log_prior: Tensor | None,
    log_weights: Tensor,
    *,
    classes: Tensor | None = None,
) -> tuple[Tensor, ClassStatistics]:
    r"""Return :math:`\log p_s(y_i|x_i)` of each sample (N,), and the class statistics.

    Both come from one node of the autograd graph, whose backward pass writes their
    gradients into one tensor. It cannot be differentiated twice.

    Args:
        logits: As in :func:`class_statistics`, and so the other arguments. Of no rows
            the log-sum-exps are :math:`-\infty` for all classes.
        labels: Class indices, shape (N,).
        log_prior: :math:`\log p_s`, shape (C,); ``None`` leaves the log-probabilities
            out (they are returned as zeros).
        log_weights: Shape (N,).
        classes: Shape (K,).
    """
    if len(logits) == 0:  # as on a process that has no part of a batch
        return _of_no_samples(logits)
    if classes is not None and 2 * len(classes) > logits.shape[1]:
        classes = None  # picking most columns costs more than taking them all
    log_probs, log_sum_exp, positive_sums = _BatchSums.apply(
        logits, labels, log_prior, log_weights, classes
    )
    counts = _count(labels, logits)
    return log_probs, ClassStatistics(log_sum_exp, positive_sums, counts)


def _of_no_samples(logits: Tensor) -> tuple[Tensor, ClassStatistics]:
    zeros = logits.new_zeros(logits.shape[1])  # (C,)
    return logits.sum(1), ClassStatistics(zeros.log(), zeros, zeros)


def _count(labels: Tensor, like: Tensor) -> Tensor:
    # torch.bincount would make the host wait for the largest label.
    zeros, ones = like.new_zeros(like.shape[1]), like.new_ones(len(labels))
    return zeros.index_add_(0, labels, ones)  # (C,)


class _BatchSums(Function):
    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        y: Tensor,
        log_p_s: Tensor | None,
        log_w: Tensor,
        classes: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if log_p_s is None:
            log_probs, own_log_probs = None, f.new_zeros(len(f))
        else:
            log_probs = F.log_softmax(f + log_p_s, dim=1)  # (N, C)
            own_log_probs = log_probs.gather(1, y[:, None]).squeeze(1)  # (N,)
        if classes is None:
            columns = f + log_w[:, None]  # (N, C)
        else:
            columns = f.index_select(1, classes).add_(log_w[:, None])  # (N, K)
        peak = columns.amax(0)
        terms = columns.sub_(peak).exp_()  # w_i e^{f_ic} / e^{peak_c}, in [0, 1]
        sums = terms.sum(0)  # at least 1, so that the log is safe
        log_sum_exp = peak + sums.log()
        if classes is not None:
            log_sum_exp = f.new_zeros(f.shape[1]).scatter_(0, classes, log_sum_exp)
            # The columns of a class that is asked for twice share its gradient.
            sums = sums * _count(classes, f).index_select(0, classes)
        own = f.gather(1, y[:, None]).squeeze(1)  # f_i[y_i], (N,)
        positive_sums = f.new_zeros(f.shape[1]).index_add_(0, y, own)
        ctx.save_for_backward(log_probs, terms, sums, y, classes)
        ctx.num_classes = f.shape[1]
        return own_log_probs, log_sum_exp, positive_sums

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_rows: Tensor, grad_columns: Tensor, grad_positive: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        log_probs, terms, sums, y, classes = ctx.saved_tensors
        own = grad_positive.index_select(0, y)  # (N,)
        if log_probs is None:
            grad = terms.new_zeros(len(y), ctx.num_classes)
        else:
            grad = log_probs.exp().mul_(-grad_rows[:, None])
            own = own + grad_rows
        if classes is None:
            grad.addcmul_(terms, grad_columns / sums)
        else:
            shares = grad_columns.index_select(0, classes) / sums
            grad.index_add_(1, classes, terms * shares)
        return grad.scatter_add_(1, y[:, None], own[:, None]), None, None, None, None
