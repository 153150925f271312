"""LADER: the regulariser that disentangles logits from the source prior."""

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.checks import as_tensor
from tailshift.losses.checks import check_batch, check_class_weights, check_not_negative
from tailshift.losses.class_statistics import ClassStatistics, class_statistics
from tailshift.priors import VectorLike, as_prior

LADERMode: TypeAlias = Literal["paper", "self_normalised", "all_classes", "official"]


def lader(
    logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    lam: float,
    mode: LADERMode = "paper",
    class_weights: VectorLike | None = None,
) -> Tensor:
    r"""Return the label distribution disentangling regulariser of a batch, a scalar.

    .. math::

        T_c = \log \frac{1}{N} \sum_i \frac{p_u(y_i)}{p_s(y_i)} e^{f_{ic}}, \qquad
        L = \sum_{c \in S} \alpha_c \Bigl(
            -\frac{1}{n_c} \sum_{i: y_i = c} f_{ic} + T_c + \lambda T_c^2 \Bigr)

    [hong2021] Eq. (15) and (16), with :math:`S` the classes of the batch and
    :math:`p_u = 1/C`. For :math:`\lambda > 0` the minimum over all functions is
    :math:`f(x)[c] = \log p_u(x|c) / p_u(x)` (Theorem 2): logits without the source
    prior. The modes differ in :math:`T_c` and in :math:`S`:

    - ``"paper"``: as above.
    - ``"self_normalised"``: divides by the sum of the importance weights
      :math:`p_u(y_i) / p_s(y_i)` instead of :math:`N`: less variance, a little bias.
    - ``"all_classes"``: the sum runs over all :math:`C` classes; one without a sample
      in the batch keeps :math:`T_c + \lambda T_c^2`, which pushes its logits down. In
      large batches that hold class c with probability :math:`P_c` the minimum is that
      of Theorem 2 and a constant, :math:`-(1 - P_c) / (2 \lambda)`.
    - ``"official"``: what the authors' published code computes. The weight is that of
      the logit's class, :math:`p_u / p_s(c)`, and the sum runs over all :math:`C`
      classes; one without a sample keeps :math:`T_c + \lambda T_c^2`. Its minimum is
      :math:`\log (C\, p_s(c|x))`, which still holds the source prior.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        lam: :math:`\lambda`, not negative; pulls :math:`T_c` to 0.
        mode: ``"paper"``, ``"self_normalised"``, ``"all_classes"`` or ``"official"``.
        class_weights: :math:`\alpha_c`, not negative, shape (C,); default :math:`p_s`.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> labels, source_prior = torch.tensor([0, 2]), torch.tensor([0.7, 0.2, 0.1])
        >>> lader(logits, labels, source_prior, lam=0.1)
        tensor(-0.1160)
    """
    check_lader_settings(lam, mode)
    f, y = check_batch(logits, labels)  # (N, C), (N,)
    p_s = as_prior(source_prior, num_classes=f.shape[1], like=f, positive=True)
    alpha_c = as_class_weights(class_weights, p_s)
    log_p_s = p_s.log()
    log_w, is_present_only = importance_weights(y, log_p_s, mode=mode)
    statistics = class_statistics(f, y, log_w, is_present_only=is_present_only)
    return lader_from_statistics(statistics, log_p_s, alpha_c, lam=lam, mode=mode)


def importance_weights(
    y: Tensor, log_p_s: Tensor, *, mode: LADERMode
) -> tuple[Tensor, bool]:
    """Return each sample's log weight (N,), and whether only classes present count.

    These are the last arguments of :func:`class_statistics`.
    """
    if mode == "official":  # weighted by class, once the samples are summed
        return torch.zeros_like(y, dtype=log_p_s.dtype), False
    log_w = -math.log(len(log_p_s)) - log_p_s.index_select(0, y)  # Eq. 12
    return log_w, mode != "all_classes"


def lader_from_statistics(
    statistics: ClassStatistics,
    log_p_s: Tensor,
    alpha_c: Tensor,
    *,
    lam: float,
    mode: LADERMode,
) -> Tensor:
    """Return LADER from the statistics of a batch, or of all processes' batches.

    Args:
        statistics: From :func:`class_statistics` with the weights of this ``mode``.
        log_p_s: Log source prior, shape (C,).
        alpha_c: Weight of each class, shape (C,).
        lam: As in :func:`lader`.
        mode: As in :func:`lader`.
    """
    log_sum_exp, positive_sums, n = statistics  # (C,) each
    total = n.sum()  # N
    if mode == "self_normalised":
        total = (n * (-log_p_s).exp()).sum() / len(n)  # sum of p_u/p_s(y_i)
    if mode == "official":
        log_sum_exp = log_sum_exp - log_p_s - math.log(len(n))
    elif mode != "all_classes":
        alpha_c = alpha_c * (n > 0)  # only c in S
    t = log_sum_exp - total.log()  # Eq. 13
    positive = positive_sums / n.clamp(min=1)  # Eq. 11; 0 for an absent class
    return (alpha_c * (t + lam * t.square() - positive)).sum()  # Eq. 15 and 16


def check_lader_settings(lam: float, mode: str) -> None:
    """Refuse a negative ``lam`` and an unknown ``mode``."""
    check_not_negative("lam", lam)
    if mode not in get_args(LADERMode):
        raise ValueError(
            "`mode` must be 'paper', 'self_normalised', 'all_classes' or 'official', "
            f"but is {mode!r}."
        )


def as_class_weights(class_weights: VectorLike | None, p_s: Tensor) -> Tensor:
    r"""Return :math:`\alpha_c` beside ``p_s``; its values are checked on the CPU."""
    if class_weights is None:
        return p_s
    alpha_c = as_tensor(class_weights, "class_weights")
    if alpha_c.shape != p_s.shape:
        raise ValueError(
            f"`class_weights` must have shape ({len(p_s)},), one for each entry of "
            f"`source_prior`, but has shape {tuple(alpha_c.shape)}."
        )
    check_class_weights(alpha_c)
    return alpha_c.to(p_s)
