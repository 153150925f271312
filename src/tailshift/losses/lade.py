"""LADE: cross-entropy with the source prior, plus the regulariser LADER."""

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.balanced_softmax import balanced_softmax_loss, prior_cross_entropy
from tailshift.losses.class_statistics import log_probs_and_statistics
from tailshift.losses.lader import (
    LADERMode,
    as_class_weights,
    check_lader_settings,
    importance_weights,
    lader_from_statistics,
)
from tailshift.losses.reduction import Reduction
from tailshift.priors import VectorLike, as_prior, uniform
from tailshift.processes import Processes


def lade_ce_loss(
    logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return LADE-CE, the cross-entropy of :math:`p_s(y|x)` from disentangled logits.

    [hong2021] Eq. (18) and (19): the same function as
    :func:`~tailshift.losses.balanced_softmax_loss`, derived another way.
    """
    return balanced_softmax_loss(logits, labels, source_prior, reduction=reduction)


def lade_loss(
    logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    alpha: float = 0.1,
    lam: float = 0.01,
    mode: LADERMode = "paper",
    class_weights: VectorLike | None = None,
) -> Tensor:
    r"""Return the LADE loss of a batch, a scalar.

    .. math:: L_{LADE} = L_{LADE-CE} + \alpha \cdot L_{LADER}

    [hong2021] Eq. (20). With :math:`\alpha = 0` it is Balanced Softmax, to the last
    bit. The logits carry no prior: at test time add :math:`\log p_t` (Eq. 17) with
    :func:`~tailshift.compensation.post_compensate` and a uniform ``logit_prior``.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        alpha: :math:`\alpha`, not negative, the weight of LADER.
        lam: :math:`\lambda`, not negative, see :func:`~tailshift.losses.lader`.
        mode: ``"paper"``, ``"self_normalised"``, ``"all_classes"`` or ``"official"``,
            see there.
        class_weights: :math:`\alpha_c`, not negative, shape (C,); default :math:`p_s`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> labels, source_prior = torch.tensor([0, 2]), torch.tensor([0.7, 0.2, 0.1])
        >>> lade_loss(logits, labels, source_prior, alpha=0.1, lam=0.1)
        tensor(1.1983)
    """
    checks.check_not_negative("alpha", alpha)
    check_lader_settings(lam, mode)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    p_s = as_prior(source_prior, num_classes=f.shape[1], like=f, positive=True)
    alpha_c = as_class_weights(class_weights, p_s)
    return _lade(f, y, p_s, alpha_c, alpha=alpha, lam=lam, mode=mode)


def _lade(
    f: Tensor,
    y: Tensor,
    p_s: Tensor,
    alpha_c: Tensor,
    *,
    alpha: float,
    lam: float,
    mode: LADERMode,
    processes: Processes | None = None,
) -> Tensor:
    processes = processes or Processes()
    log_p_s = p_s.log()
    if alpha == 0:
        return prior_cross_entropy(f, y, log_p_s)
    log_w, is_present_only = importance_weights(y, log_p_s, mode=mode)
    log_probs, statistics = log_probs_and_statistics(
        f, y, log_p_s, log_w, is_present_only=is_present_only, processes=processes
    )
    regulariser = lader_from_statistics(
        statistics, log_p_s, alpha_c, lam=lam, mode=mode
    )
    mean_log_prob = processes.mean(log_probs, num_samples=statistics.counts.sum())
    return alpha * regulariser - mean_log_prob  # Eq. 20


@base.LOSSES.register("lade", about=lade_loss)
class LADELoss(base.PriorLoss):
    """Module form of :func:`lade_loss`; prior and class weights are buffers.

    The defaults of ``alpha`` and ``lam`` are those of the paper's runs on CIFAR-100-LT.

    Example:
        >>> import torch
        >>> loss = LADELoss([0.7, 0.2, 0.1])
        >>> loss
        LADELoss(num_classes=3, alpha=0.1, lam=0.01, mode='paper')
        >>> loss(torch.zeros(2, 3), torch.tensor([0, 2]))
        tensor(1.3815)
    """

    spans_batch = True
    class_weights: Tensor

    def __init__(
        self,
        source_prior: VectorLike,
        *,
        alpha: float = 0.1,
        lam: float = 0.01,
        mode: LADERMode = "paper",
        class_weights: VectorLike | None = None,
    ) -> None:
        super().__init__(source_prior)
        checks.check_not_negative("alpha", alpha)
        check_lader_settings(lam, mode)
        self.alpha, self.lam, self.mode = alpha, lam, mode
        alpha_c = as_class_weights(class_weights, self.source_prior)
        self.register_buffer("class_weights", alpha_c.clone())

    @property
    def logit_prior(self) -> Tensor:
        """The uniform prior: :math:`p_t` is added at test time, Eq. (17)."""
        return uniform(len(self.source_prior))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        return self._of(*checks.check_batch(logits, labels), Processes())

    def over_processes(
        self, logits: Tensor, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages over processes to the loss of all their samples.

        LADER is that of the whole batch on all of them, of reduced statistics.

        Args:
            logits: Logits of this process, shape (n, C), n may be 0.
            labels: Class indices, shape (n,).
            processes: The processes that train together.
        """
        return self._of(*checks.check_part(logits, labels), processes)

    def _of(self, f: Tensor, y: Tensor, processes: Processes) -> Tensor:
        checks.check_num_classes("source_prior", self.source_prior, f)
        if self.alpha == 0 and processes.world_size > 1:
            losses = prior_cross_entropy(f, y, self.log_prior(f), reduction="none")
            return processes.mean(losses)
        return _lade(
            f,
            y,
            self.source_prior.to(f.dtype),
            self.class_weights.to(f.dtype),
            alpha=self.alpha,
            lam=self.lam,
            mode=self.mode,
            processes=processes,
        )

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return LADE-CE for each possible label, (N, C): the part with soft labels."""
        f = checks.as_logits(logits)
        return -F.log_softmax(f + self.log_prior(f), dim=1)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        settings = f"alpha={self.alpha}, lam={self.lam}, mode={self.mode!r}"
        return f"{super().extra_repr()}, {settings}"
