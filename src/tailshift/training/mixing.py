"""Mixup in the training step: drawn for each batch, nothing where it is off."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.losses import mixup, mixup_loss
from tailshift.losses.soft_targets import Loss


@dataclass(frozen=True)
class Mixed:
    """The images that a step trains on, and what their labels are."""

    images: Tensor
    labels: Tensor
    other_labels: Tensor | None = None
    """Of the images blended in; None where none are."""
    share: float = 1.0
    """What each image keeps of itself."""
    all_labels: Tensor | None = None
    """As `labels`, of all processes, where they are known."""

    def loss(self, loss: Loss, output: Tensor) -> Tensor:
        """Return the loss of what the model gave for the images."""
        if self.other_labels is None:
            return loss(output, self.labels)
        return mixup_loss(loss, output, self.labels, self.other_labels, self.share)


def mix(images: Tensor, labels: Tensor, alpha: float, *, num_parts: int = 1) -> Mixed:
    r"""Return the batch blended by a share drawn from Beta(α, α) [zhang2018].

    The draws are those of PyTorch's own generator, whose state checkpoints keep. With
    :math:`\alpha = 0` nothing is drawn and the batch stays as it is.

    Args:
        images: Shape (N, ...).
        labels: Shape (N,).
        alpha: :math:`\alpha`, not negative; towards infinity the halves are equal.
        num_parts: Of a batch stacked from several samplers; images are blended with
            those of their own part.

    Example:
        >>> mixed = mix(torch.eye(4), torch.arange(4), 1.0, num_parts=2)
        >>> torch.equal(mixed.other_labels // 2, mixed.labels // 2)
        True
    """
    if alpha == 0:
        return Mixed(images, labels)
    concentration = torch.tensor(alpha, dtype=torch.float64)
    share = float(torch.distributions.Beta(concentration, concentration).sample())
    size = len(labels) // num_parts
    parts = [torch.randperm(size) + size * part for part in range(num_parts)]
    permutation = torch.cat(parts).to(labels.device)
    blends, other_labels = mixup(images, labels, share, permutation)
    return Mixed(blends, labels, other_labels, share)
