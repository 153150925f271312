"""Focal loss: cross-entropy that fades where the model is already right."""

from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.reduction import Reduction, check_reduction, reduce, weigh
from tailshift.priors import VectorLike

FocalForm: TypeAlias = Literal["softmax", "sigmoid"]
_MOST_ODDS = 1e4  # log odds beyond which a probability is 1, or 0
_NEAR_1 = 5.0  # log odds above which log(1 + t) / t is rounded badly


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    class_weights: VectorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the focal loss of softmax probabilities.

    .. math:: w_y\, (1 - p_y)^\gamma \cdot (-\log p_y), \qquad
        p_y = \frac{e^{f(x)[y]}}{\sum_c e^{f(x)[c]}}

    [lin2017], for several classes. With :math:`\gamma = 0` it is cross-entropy, to the
    last bit. The factor comes from the probability itself and never from the weighted
    cross-entropy, whose :math:`e^{-w \ell}` is no probability. To compensate logits
    trained with it, undo it first by :func:`focal_log_posteriors`.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        gamma: :math:`\gamma`, not negative.
        class_weights: :math:`w`, not negative, shape (C,); default 1.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> focal_loss(logits, torch.tensor([0, 2]))
        tensor(0.2670)
    """
    check_reduction(reduction)
    checks.check_not_negative("gamma", gamma)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    w = checks.weights_for(f, class_weights)
    return reduce(weigh(softmax_focal(f, y, gamma), y, w), reduction)


def softmax_focal(f: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return the unweighted focal loss of each sample of a checked batch, (N,)."""
    return focal_from_cross_entropy(F.cross_entropy(f, y, reduction="none"), gamma)


def focal_from_cross_entropy(losses: Tensor, gamma: float) -> Tensor:
    r"""Return :math:`(1 - e^{-\ell})^\gamma \ell` for cross-entropies of any shape.

    At :math:`p = 1` the slope of the power is infinite for :math:`\gamma < 1`, though
    that of the product is 0. The power is therefore taken from the smallest normal
    number upwards, where its slope is still finite.
    """
    tiny = torch.finfo(losses.dtype).tiny
    wrongness = -torch.expm1(-losses.clamp(min=tiny))  # 1 − p, exact near p = 1
    return wrongness.pow(gamma) * losses


def check_form(form: str) -> None:
    """Refuse an unknown ``form``."""
    if form not in get_args(FocalForm):
        raise ValueError(f"`form` must be 'softmax' or 'sigmoid', but is {form!r}.")


def focal_log_posteriors(
    logits: Tensor, *, gamma: float = 2.0, form: FocalForm = "softmax"
) -> Tensor:
    r"""Return the log posteriors that logits trained with a focal loss stand for.

    A focal loss is least at other probabilities than the posterior: for a softmax
    :math:`q` it is least where the posterior is

    .. math:: \eta_c \propto g(q_c), \qquad g(q) = q / \varphi(q), \qquad
        \varphi(q) = (1 - q)^\gamma - \gamma (1 - q)^{\gamma - 1} q \log q,

    and for sigmoids, each a yes-no question of its own, where
    :math:`\eta_c = g(q_c) / (g(q_c) + g(1 - q_c))`. With class weights :math:`w` the
    same gives :math:`\eta_c \propto w_c\, p_s(c \mid x)`. As :math:`g` rises, the order
    of the classes stays [charoenphakdee2021].

    Args:
        logits: :math:`f`, shape (…, C); half precision is widened to float32.
        gamma: :math:`\gamma` of the loss, not negative.
        form: ``"softmax"`` or ``"sigmoid"``, that of the loss.

    Example:
        >>> focal_log_posteriors(torch.tensor([[2.0, 1.0, 0.0]])).softmax(1)
        tensor([[0.8838, 0.0875, 0.0287]])
    """
    checks.check_not_negative("gamma", gamma)
    check_form(form)
    f = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (…, C)
    if form == "sigmoid":
        return -F.softplus(_log_g(-f, gamma) - _log_g(f, gamma))
    if gamma == 0:
        return logits  # cross-entropy: they are log posteriors as they are
    return F.log_softmax(_log_g(_log_odds(f), gamma), dim=-1)


def _log_odds(f: Tensor) -> Tensor:
    """Return log q − log(1 − q) of the softmax q of logits (…, C)."""
    top = F.one_hot(f.argmax(-1), f.shape[-1]).bool()
    others = f.masked_fill(top, -torch.inf).logsumexp(-1, keepdim=True)
    log_q = F.log_softmax(f, dim=-1)
    # 1 − q of the largest would be rounded away; the sum of the others is exact.
    return torch.where(top, f - others, log_q - torch.log1p(-log_q.exp()))


def _log_g(z: Tensor, gamma: float) -> Tensor:
    """Return log q − log φ(q), where z is the log odds of q."""
    z = z.clamp(max=_MOST_ODDS)
    t = (-z).clamp(max=-_NEAR_1).exp()  # (1 − q) / q, if that is small
    near_1 = 1 - t / 2 + t**2 / 3 - t**3 / 4 + t**4 / 5  # log(1 + t) / t
    below = z.clamp(max=_NEAR_1).exp() * F.softplus((-z).clamp(max=_MOST_ODDS))
    part = torch.where(z > _NEAR_1, near_1, below)  # −q log q / (1 − q)
    # Softplus and not logsigmoid, which ONNX writes as a log of what may round to 0.
    return gamma * F.softplus(z) - F.softplus(-z) - torch.log1p(gamma * part)


@base.LOSSES.register("focal", about=focal_loss)
class FocalLoss(base.Loss):
    """Module form of :func:`focal_loss`; the weights, if any, are a buffer."""

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        class_weights: VectorLike | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        checks.check_not_negative("gamma", gamma)
        self.gamma, self.reduction = gamma, reduction
        w = None if class_weights is None else checks.as_weights(class_weights).clone()
        self.register_buffer("class_weights", w)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = checks.check_batch(logits, labels)
        losses = weigh(softmax_focal(f, y, self.gamma), y, self._weights(f))
        return reduce(losses, self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(logits)
        losses = focal_from_cross_entropy(-F.log_softmax(f, dim=1), self.gamma)
        w = self._weights(f)
        return losses if w is None else losses * w

    def _weights(self, f: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        checks.check_num_classes("class_weights", self.class_weights, f)
        return self.class_weights.to(f)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"gamma={self.gamma}"
