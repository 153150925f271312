"""BalPoE: experts with different logit priors, whose mean has a known one."""

import math
from collections.abc import Sequence

from torch import Tensor

from tailshift.losses import base
from tailshift.losses.experts import ExpertsLoss, check_experts, expert_losses
from tailshift.losses.reduction import Reduction, check_reduction, reduce
from tailshift.priors import VectorLike, as_prior

EXPERT_TAUS = (0.0, 1.0, 2.0)
"""The experts' τ in the paper, whose mean is 1: the mean of the logits is uniform."""


def balpoe_loss(
    expert_logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    taus: Sequence[float] = EXPERT_TAUS,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Compute the mean of the experts' logit-adjusted cross-entropies.

    Use it to train several classifiers for different class distributions at once: the
    mean of their logits contains the uniform prior if the mean of `taus` is 1.

    .. math:: \frac{1}{K} \sum_e CE(v_e + \tau_e \log p_s)

    [aimar2023]. The logits of expert e contain the prior
    :math:`\propto p_s^{1 - \tau_e}` (:func:`balpoe_priors`), and their mean contains
    :math:`\propto p_s^{1 - \bar\tau}`.

    Args:
        expert_logits: :math:`v`, shape (K, N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        taus: :math:`\tau`, finite, one for each of the K experts.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> logits, labels = torch.zeros(3, 1, 2), torch.tensor([0])
        >>> losses = balpoe_loss(logits, labels, [0.8, 0.2], reduction="none")
        >>> losses, -torch.tensor([1 / 2 * 4 / 5 * 16 / 17]).log() / 3
        (tensor([0.3256]), tensor([0.3256]))
    """
    check_reduction(reduction)
    _check_taus(taus)
    v, y = check_experts(expert_logits, labels, len(taus))  # (K, N, C), (N,)
    p_s = as_prior(source_prior, num_classes=v.shape[2], like=v, positive=True)
    return reduce(expert_losses(v, y, _shifts(p_s, taus)) / len(taus), reduction)


def balpoe_priors(
    source_prior: VectorLike, *, taus: Sequence[float] = EXPERT_TAUS
) -> Tensor:
    r"""Return the logit prior of each expert, float64, shape (K, C).

    Example:
        >>> balpoe_priors([0.8, 0.2])
        tensor([[0.8000, 0.2000],
                [0.5000, 0.5000],
                [0.2000, 0.8000]], dtype=torch.float64)
    """
    _check_taus(taus)
    p_s = as_prior(source_prior, positive=True)
    return (p_s.log() - _shifts(p_s, taus)).softmax(1)


def _check_taus(taus: Sequence[float]) -> None:
    """Reject an empty list of τ, or one that is not finite."""
    if not taus or not all(map(math.isfinite, taus)):
        raise ValueError(
            f"`taus` must be finite numbers, one per expert, but is {tuple(taus)}. The "
            f"paper has {EXPERT_TAUS}."
        )


def _shifts(p_s: Tensor, taus: Sequence[float]) -> Tensor:
    """Return what is added to each expert's logits in training, shape (K, C)."""
    return p_s.new_tensor(taus)[:, None] * p_s.log()


@base.LOSSES.register("balpoe", about=balpoe_loss)
class BalPoELoss(ExpertsLoss):
    """Module form of :func:`balpoe_loss`; the prior is a buffer."""

    def __init__(
        self,
        source_prior: VectorLike,
        *,
        taus: Sequence[float] = EXPERT_TAUS,
        reduction: Reduction = "mean",
    ) -> None:
        _check_taus(taus)
        super().__init__(source_prior, len(taus), reduction)
        self.taus, self.scale = tuple(taus), 1 / len(taus)

    def shifts(self, p_s: Tensor) -> Tensor:
        """Return what is added to each expert's logits in training, shape (K, C)."""
        return _shifts(p_s, self.taus)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"{super().extra_repr()}, taus={self.taus}"
