"""The head of τ-normalisation: a learnt linear head whose weights are shortened."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.metrics import class_groups
from tailshift.models.heads.head import HEADS, Head, StageFeatures
from tailshift.models.heads.linear import LinearHead

TAUS = tuple(round(0.1 * step, 1) for step in range(21))
"""The values that are tried on validation data."""

_MEMORISED = 0.9
"""Accuracy on rare classes' training images above which these say little about τ."""


@HEADS.register("normed_linear")
class NormedLinearHead(Head):
    r"""Logits :math:`f[c] = w_c \cdot x / \lVert w_c \rVert^\tau`, no bias [kang2020].

    Nothing is trained: the weights are those of the first stage. If `tau` is None, it
    is the value of 0, 0.1, …, 2 with the highest accuracy on the validation images,
    each class counting as much as any other. Training images may stand in for them
    while the network still errs on those of rare classes; a warning says if not.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.
        tau: :math:`\tau`, or None to choose it.
        choose_on_training: Whether to choose it on the training images if there are
            no validation images.

    Example:
        >>> head = NormedLinearHead(2, 2, tau=1.0)
        >>> _ = head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
        >>> head(torch.tensor([[1.0, 1.0]]))
        tensor([[1.4000, 1.0000]])
    """

    sentence = "A trained linear map, its vectors shortened to ‖w‖^τ."

    weight: Tensor
    tau: Tensor

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        tau: float | None = None,
        choose_on_training: bool = False,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.is_chosen, self.choose_on_training = tau is None, choose_on_training
        start = 1.0 if tau is None else tau
        self.register_buffer("weight", torch.zeros(num_classes, feature_dim))
        self.register_buffer("tau", torch.tensor(start))

    def begin(self, previous: Head, features: StageFeatures) -> None:
        """Take the linear head's weights over, and choose τ if it is free."""
        assert isinstance(previous, LinearHead)
        self.weight.copy_(previous.weight.detach())
        if not self.is_chosen:
            return
        held_out = features.val()
        if held_out is None and self.choose_on_training:
            held_out = features.train()
            _warn_if_memorised(previous, *held_out)
        if held_out is None:
            raise ValueError(
                "`method.tau` is chosen on validation images, but the data has none "
                "that the first stage did not train on. Set it, such as to 1, or train "
                "the first stage in this run (without --from)."
            )
        self.tau.fill_(best_tau(self.weight, *held_out))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        return F.linear(features, _shorten(self.weight, self.tau))


def _warn_if_memorised(head: LinearHead, features: Tensor, labels: Tensor) -> None:
    """Warn if the training images of rare classes are almost all right already."""
    counts = labels.bincount(minlength=head.num_classes)
    is_few = torch.isin(labels, class_groups(counts)["few"])
    rare = is_few if is_few.any() else torch.ones_like(is_few)
    logits = F.linear(features, head.weight.cpu(), head.bias.cpu())
    right = (logits.argmax(1) == labels)[rare].double().mean().item()
    if right > _MEMORISED:
        warnings.warn(
            f"τ was chosen on training images, but {right:.0%} of those of the rarest "
            "classes are already right, so that they say little. Train once with "
            "method.tau=held_out, and set method.tau to the `model.head.tau` of that "
            "run.",
            stacklevel=2,
        )


def _shorten(weight: Tensor, tau: float | Tensor) -> Tensor:
    """Return each row divided by its length to the power of `tau`."""
    lengths: Tensor = weight.norm(dim=1, keepdim=True)
    return weight / lengths**tau


def best_tau(weight: Tensor, features: Tensor, labels: Tensor) -> float:
    """Return the τ of :data:`TAUS` with the best mean of the classes' accuracies.

    Args:
        weight: Weights of the linear head, shape (C, d).
        features: Features of held-out images, shape (N, d).
        labels: Classes of these images, shape (N,).
    """
    counts = labels.bincount(minlength=len(weight))

    def balanced_accuracy(tau: float) -> float:
        hits = F.linear(features, _shorten(weight, tau)).argmax(1) == labels
        per_class = labels[hits].bincount(minlength=len(weight)) / counts.clamp(min=1)
        return float(per_class[counts > 0].mean())

    return max(TAUS, key=balanced_accuracy)
