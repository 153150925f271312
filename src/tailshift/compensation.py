"""Post-compensation: logits that carry one prior, made to answer for another."""

from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailshift.priors import VectorLike, as_prior

Array = TypeVar("Array", bound=np.generic)


@overload
def post_compensate(
    logits: Tensor, *, trained_prior: VectorLike, target_prior: VectorLike
) -> Tensor: ...
@overload
def post_compensate(
    logits: NDArray[Array], *, trained_prior: VectorLike, target_prior: VectorLike
) -> NDArray[Array]: ...
def post_compensate(
    logits: Tensor | NDArray[Any],
    *,
    trained_prior: VectorLike,
    target_prior: VectorLike,
) -> Tensor | NDArray[Any]:
    r"""Return logits that answer for the target prior.

    .. math:: f^{PC}(x)[y] = f(x)[y] - \log p_{trained}(y) + \log p_t(y)

    [hong2021] Eq. (4). With :math:`p_{trained} = p_s` and cross-entropy logits this is
    PC Softmax (Theorem 1, Eq. 5 to 7); with :math:`p_{trained}` uniform it is LADE's
    inference (Eq. 17). A class that cannot occur in the target gets the logit −inf.

    Args:
        logits: :math:`f`, shape (…, C), torch or NumPy; the result is of the same kind,
            device and dtype.
        trained_prior: The prior that the logits carry, shape (C,). It may be zero only
            where ``target_prior`` is.
        target_prior: :math:`p_t`, the prior to answer for, shape (C,).

    Example:
        >>> logits = torch.tensor([[2.0, 1.0]])
        >>> post_compensate(logits, trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5])
        tensor([[1.5300, 1.9163]])
    """
    if isinstance(logits, np.ndarray):
        compensated = post_compensate(
            torch.from_numpy(logits),
            trained_prior=trained_prior,
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
    ratio = log_prior_ratio(trained_prior, target_prior, num_classes=logits.shape[-1])
    return _add(logits, ratio)


def log_prior_ratio(
    trained_prior: VectorLike, target_prior: VectorLike, *, num_classes: int
) -> Tensor:
    r"""Return :math:`\log p_t - \log p_{trained}`, float64, shape (C,).

    It is −inf where the target prior is 0.
    """
    p_trained = as_prior(trained_prior, name="trained_prior", num_classes=num_classes)
    p_t = as_prior(target_prior, name="target_prior", num_classes=num_classes)
    impossible = p_t == 0
    unknown = (p_trained == 0) & ~impossible
    if unknown.any():
        where = int(unknown.nonzero()[0])
        raise ValueError(
            "`trained_prior` must be positive where `target_prior` is, but is 0 for "
            f"class {where}: logits trained without a class cannot answer for it."
        )
    return p_t.log() - p_trained.masked_fill(impossible, 1.0).log()


def _add(logits: Tensor, ratio: Tensor) -> Tensor:
    """Return ``logits`` + ``ratio`` in the logits' dtype, added in float32 or wider."""
    ratio = ratio.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
    # A class without target mass is impossible even where its logit is +inf.
    total = torch.where(ratio == -torch.inf, ratio, logits + ratio)
    return total.to(logits.dtype)


class PostCompensated(nn.Module):
    """A classifier whose logits answer for a target prior that can be changed.

    Args:
        model: Any module that returns logits of shape (…, C).
        trained_prior: The prior that the model's logits carry, shape (C,).
        target_prior: The prior to answer for, shape (C,).

    Example:
        >>> model = PostCompensated(
        ...     nn.Identity(), trained_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        ... )
        >>> model(torch.tensor([[2.0, 1.0]]))
        tensor([[1.5300, 1.9163]])
        >>> model.set_target_prior([0.8, 0.2])(torch.tensor([[2.0, 1.0]]))
        tensor([[2., 1.]])
    """

    log_ratio: Tensor

    def __init__(
        self, model: nn.Module, *, trained_prior: VectorLike, target_prior: VectorLike
    ) -> None:
        super().__init__()
        self.model = model
        # Priors stay float64 whatever the module is cast to; only the sum is moved.
        self.trained_prior = as_prior(trained_prior, name="trained_prior")
        self.register_buffer("log_ratio", torch.zeros(len(self.trained_prior)))
        self.set_target_prior(target_prior)

    def set_target_prior(self, target_prior: VectorLike) -> "PostCompensated":
        """Answer for another prior from now on; returns the module itself."""
        num_classes = len(self.trained_prior)
        p_t = as_prior(target_prior, name="target_prior", num_classes=num_classes)
        self.log_ratio.copy_(
            log_prior_ratio(self.trained_prior, p_t, num_classes=num_classes)
        )
        self.target_prior = p_t
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the model's logits, compensated."""
        logits: Tensor = self.model(*args, **kwargs)
        if logits.shape[-1] != len(self.log_ratio):
            raise ValueError(
                f"`target_prior` has {len(self.log_ratio)} entries "
                f"but `logits` has {logits.shape[-1]} classes."
            )
        return _add(logits, self.log_ratio)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return both priors, to be saved with the weights."""
        return {"trained_prior": self.trained_prior, "target_prior": self.target_prior}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore both priors."""
        self.trained_prior = as_prior(state["trained_prior"], name="trained_prior")
        self.set_target_prior(state["target_prior"])
