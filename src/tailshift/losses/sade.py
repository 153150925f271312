"""SADE: three experts, each trained to answer for another class distribution."""

import torch
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.experts import ExpertsLoss, check_experts, expert_losses
from tailshift.losses.reduction import Reduction, check_reduction, reduce
from tailshift.priors import VectorLike, as_prior

_NUM_EXPERTS = 3
"""As many as the loss has priors for."""


def sade_loss(
    expert_logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    tau: float = 2.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the sum of the three experts' cross-entropies.

    .. math:: CE(v_1) + CE(v_2 + \log p_s) + CE(v_3 + \log p_s - \tau \log \bar p)

    [zhang2022], with :math:`\bar p` from :func:`inverse_prior`. A cross-entropy makes
    its argument :math:`\log p(x|y) + \log p_s(y)` up to a constant of x, so what an
    expert's own logits carry is :math:`p_s` divided by the exponential of its shift
    (:func:`sade_priors`): :math:`p_s` for the first, the uniform prior for the second
    and :math:`\propto \bar p^\tau`, which is rich in rare classes, for the third. Their
    mean carries :math:`\propto (p_s\, \bar p^\tau)^{1/3}`.

    Args:
        expert_logits: :math:`v_1, v_2, v_3`, shape (3, N, C); half precision is widened
            to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        tau: :math:`\tau`, not negative.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> logits, labels = torch.zeros(3, 1, 2), torch.tensor([0])
        >>> sade_loss(logits, labels, [0.8, 0.2], reduction="none")  # −log ½ .8 64/65
        tensor([0.9318])
    """
    check_reduction(reduction)
    v, y = check_experts(expert_logits, labels, _NUM_EXPERTS)  # (3, N, C), (N,)
    p_s = as_prior(source_prior, num_classes=v.shape[2], like=v, positive=True)
    return reduce(expert_losses(v, y, _shifts(p_s, tau)), reduction)


def inverse_prior(source_prior: VectorLike) -> Tensor:
    r"""Return :math:`\bar p`, the same shares with the ranks of the classes reversed.

    The most frequent class gets the share of the rarest one. Ties are ranked by class.

    Example:
        >>> inverse_prior([0.5, 0.2, 0.3])
        tensor([0.2000, 0.5000, 0.3000], dtype=torch.float64)
    """
    return _reverse_ranks(as_prior(source_prior))


def _reverse_ranks(p: Tensor) -> Tensor:
    order = p.argsort(descending=True, stable=True)
    return torch.empty_like(p).scatter(0, order, p.index_select(0, order.flip(0)))


def sade_priors(source_prior: VectorLike, *, tau: float = 2.0) -> Tensor:
    r"""Return the prior that each expert's logits carry, float64, shape (3, C).

    Example:
        >>> sade_priors([0.8, 0.2], tau=1.0)
        tensor([[0.8000, 0.2000],
                [0.5000, 0.5000],
                [0.2000, 0.8000]], dtype=torch.float64)
    """
    p_s = as_prior(source_prior, positive=True)
    return (p_s.log() - _shifts(p_s, tau)).softmax(1)


def _shifts(p_s: Tensor, tau: float) -> Tensor:
    """Return what is added to each expert's logits in training, shape (3, C)."""
    checks.check_not_negative("tau", tau)
    log_p_s = p_s.log()
    inverse = log_p_s - tau * _reverse_ranks(p_s).log()
    return torch.stack([torch.zeros_like(log_p_s), log_p_s, inverse])


@base.LOSSES.register("sade", about=sade_loss)
class SADELoss(ExpertsLoss):
    """Module form of :func:`sade_loss`; the prior is a buffer."""

    def __init__(
        self,
        source_prior: VectorLike,
        *,
        tau: float = 2.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(source_prior, _NUM_EXPERTS, reduction)
        checks.check_not_negative("tau", tau)
        self.tau = tau

    def shifts(self, p_s: Tensor) -> Tensor:
        """Return what is added to each expert's logits in training, shape (3, C)."""
        return _shifts(p_s, self.tau)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"{super().extra_repr()}, tau={self.tau}"
