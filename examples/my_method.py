"""A method of your own in one file: its loss, its head, and the prior it carries.

Nothing in tailshift needs to change. Load the file with --plugin, and the method is
there like any other:

    tailshift train digits_lt --plugin my_method.py --method vector_scaling
    tailshift train digits_lt --plugin my_method.py --method vector_scaling --resume
    tailshift evaluate runs/digits_lt/vector_scaling-seed0 --plugin my_method.py
    tailshift list methods --plugin my_method.py

From Python: ``ts.load_plugin("my_method.py")``. A package brings its own without
--plugin through an entry point in its pyproject.toml:

    [project.entry-points."tailshift.plugins"]
    my_package = "my_package.my_method"

The method is the vector-scaling loss (Kini et al., NeurIPS 2021): logits are scaled
by class, rare classes less, and shifted by the log prior before the cross-entropy.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import LOSSES
from tailshift.methods import METHODS, Method
from tailshift.models import HEADS, Head


@LOSSES.register("vector_scaling")
class VectorScalingLoss(nn.Module):
    """Cross-entropy of logits that are scaled and shifted by class."""

    scales: Tensor  # what must outlive an interruption is a buffer
    shifts: Tensor

    def __init__(self, class_counts: Tensor, *, gamma: float, tau: float) -> None:
        super().__init__()
        n = class_counts.float()
        self.register_buffer("scales", (n / n.max()) ** gamma)  # (C,)
        self.register_buffer("shifts", tau * (n / n.sum()).log())  # (C,)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over a batch: logits (N, C), labels (N,)."""
        return F.cross_entropy(logits * self.scales + self.shifts, labels)


@HEADS.register("learnt_cosine")
class LearntCosineHead(Head):
    """The cosine with each class's vector, times one learnt scale."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.feature_dim, self.num_classes = feature_dim, num_classes
        self.weight = nn.Parameter(torch.randn(num_classes, feature_dim))
        self.scale = nn.Parameter(torch.tensor(16.0))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (N, C) of features (N, d)."""
        return self.scale * F.linear(F.normalize(features), F.normalize(self.weight))


@METHODS.register("vector_scaling")
@dataclass(frozen=True)
class VectorScaling(Method):
    """Cross-entropy of logits scaled and shifted by class, over a cosine head."""

    title = "Vector Scaling"  # in tables and reports
    prior = "uniform, exactly with γ = 0 and τ = 1"  # in `tailshift list methods`

    gamma: float = 0.05  # the fields are settings: --set method.gamma=0.1
    tau: float = 1.0

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for how often an epoch shows each class, (C,)."""
        return VectorScalingLoss(class_counts, gamma=self.gamma, tau=self.tau)

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the classifier on top of the backbone."""
        return LearntCosineHead(feature_dim, num_classes)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the logits carry; compensation takes it out again."""
        return priors.uniform(len(class_counts))
