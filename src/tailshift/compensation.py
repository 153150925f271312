"""Post-compensation: logits that carry one prior, made to answer for another."""

from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.checks import refuse_probs
from tailshift.deprecation import old_names, renamed_arguments
from tailshift.priors import VectorLike, as_prior, as_tensor

Array = TypeVar("Array", bound=np.generic)

_HALF_WHOLE = 1024.0  # above it half precision has whole numbers alone


@overload
def post_compensate(
    logits: Tensor, *, logit_prior: VectorLike, target_prior: VectorLike
) -> Tensor: ...
@overload
def post_compensate(
    logits: NDArray[Array], *, logit_prior: VectorLike, target_prior: VectorLike
) -> NDArray[Array]: ...
@renamed_arguments(trained_prior="logit_prior")
def post_compensate(
    logits: Tensor | NDArray[Any],
    *,
    logit_prior: VectorLike,
    target_prior: VectorLike,
) -> Tensor | NDArray[Any]:
    r"""Return logits that answer for the target prior.

    .. math:: f^{PC}(x)[y] = f(x)[y] - \log p_{trained}(y) + \log p_t(y)

    [hong2021] Eq. (4). With :math:`p_{trained} = p_s` and cross-entropy logits this is
    PC Softmax (Theorem 1, Eq. 5 to 7); with :math:`p_{trained}` uniform it is LADE's
    inference (Eq. 17). A class that cannot occur in the target gets the logit −inf.
    Several rows of probabilities on the CPU, without gradient, are refused.

    Args:
        logits: :math:`f`, shape (…, C), torch or NumPy; the result is of the same kind,
            device and dtype.
        logit_prior: The prior that the logits carry, shape (C,). It may be zero only
            where ``target_prior`` is.
        target_prior: :math:`p_t`, the prior to answer for, shape (C,).

    Example:
        >>> logits = torch.tensor([[2.0, 1.0]])
        >>> post_compensate(logits, logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
        tensor([[1.5300, 1.9163]])
    """
    if isinstance(logits, np.ndarray):
        compensated = post_compensate(
            as_tensor(logits, "logits"),
            logit_prior=logit_prior,
            target_prior=target_prior,
        )
        return compensated.numpy()
    if not isinstance(logits, Tensor):
        raise TypeError(
            "`logits` must be a torch tensor or a NumPy array, "
            f"but is {type(logits).__name__}."
        )
    if logits.ndim == 0 or not logits.is_floating_point():
        raise TypeError(
            "`logits` must be floating point with the classes in the last dimension, "
            f"but is {logits.dtype} of shape {tuple(logits.shape)}."
        )
    if logits.ndim == 2 and _may_be_read(logits):
        refuse_probs(logits)
    ratio = log_prior_ratio(logit_prior, target_prior, num_classes=logits.shape[-1])
    return add_log_ratio(logits, ratio)


def _may_be_read(logits: Tensor) -> bool:
    """Return whether values may be looked at: not in training, nor to make a graph."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    is_mapped = torch._C._functorch.is_batchedtensor(logits)  # by torch.func.vmap
    is_waited_for = logits.device.type != "cpu"
    return not (is_mapped or is_waited_for or logits.requires_grad)


def log_prior_ratio(
    logit_prior: VectorLike, target_prior: VectorLike, *, num_classes: int
) -> Tensor:
    r"""Return :math:`\log p_t - \log p_{trained}`, float64, shape (C,).

    It is −inf if the target prior is 0.
    """
    p_trained = as_prior(logit_prior, name="logit_prior", num_classes=num_classes)
    p_t = as_prior(target_prior, name="target_prior", num_classes=num_classes)
    impossible = p_t == 0
    unknown = (p_trained == 0) & ~impossible
    if unknown.any():
        where = int(unknown.nonzero()[0])
        raise ValueError(
            "`logit_prior` must be positive where `target_prior` is, but is 0 for "
            f"class {where}: logits trained without a class cannot answer for it."
        )
    return p_t.log() - p_trained.masked_fill(impossible, 1.0).log()


def add_log_ratio(logits: Tensor, ratio: Tensor) -> Tensor:
    """Return logits + log ratio in the logits' dtype, added in float32 or wider."""
    ratio = ratio.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
    # A class without target mass is impossible even if its logit is +inf.
    total = torch.where(ratio == -torch.inf, ratio, logits + ratio)
    if logits.dtype == torch.float16:
        total = _with_largest_at_zero(total)
    return total.to(logits.dtype)


def _with_largest_at_zero(total: Tensor) -> Tensor:
    """Return large logits (…, C) with 0 as the largest: half precision has few there.

    It has one number in 32 at 65000, and none above 65504, so that a compensation
    would be rounded away or overflow. No probability changes.
    """
    top = total.amax(dim=-1, keepdim=True)
    is_large = (top.abs() > _HALF_WHOLE) & top.isfinite()
    moved = total - torch.where(is_large, top, 0.0)
    sure = torch.where(total == torch.inf, 0.0, -torch.inf)  # the limit of its softmax
    return torch.where(top == torch.inf, sure, moved)


if not TYPE_CHECKING:
    __getattr__ = old_names(
        __name__,
        {
            name: f"tailshift.models.{name}"
            for name in ("PostCompensated", "SupportsEstimate", "UncalibratedWarning")
        },
    )
