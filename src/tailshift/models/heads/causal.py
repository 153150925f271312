"""The causal head: several normalised heads, and the effect of momentum removed."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models.heads.head import HEADS, Head
from tailshift.processes import Processes


@HEADS.register("causal")
class CausalHead(Head):
    r"""The de-confounded classifier of Causal Norm, with TDE at test time [tang2020].

    Features and weights are cut into K pieces :math:`x_k, w_k`, and

    .. math::
        f = \frac{\tau}{K} \sum_k \frac{w_k}{\lVert w_k \rVert + \gamma} \cdot
            \Bigl(\frac{x_k}{\lVert x_k \rVert} - \alpha \cos(x_k, \bar x_k)
            \frac{\bar x_k}{\lVert \bar x_k \rVert}\Bigr)

    with :math:`\alpha = 0` in training. :math:`\bar x` is the moving average of the
    training features, the direction towards which the optimiser's momentum has drifted;
    in evaluation what points that way, the total direct effect's excess, is removed.

    Args:
        feature_dim: Length of the feature vector, a multiple of `num_heads`.
        num_classes: Number of logits.
        num_heads: :math:`K`.
        scale: :math:`\tau`.
        gamma: :math:`\gamma`, added to the length of each weight vector.
        alpha: :math:`\alpha`, how much is removed in evaluation; it may be changed in a
            trained head.
        decay: Decay of the moving average.

    Example:
        >>> head = CausalHead(4, 3, alpha=1.5)
        >>> logits = head(torch.ones(2, 4))  # in training: also moves the average
        >>> head.mean_feature
        tensor([1., 1., 1., 1.])
    """

    sentence = "Several normalised heads; at test less the mean feature."

    mean_feature: Tensor

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        num_heads: int = 2,
        scale: float = 16.0,
        gamma: float = 1 / 32,
        alpha: float = 1.5,
        decay: float = 0.9,
    ) -> None:
        super().__init__()
        if feature_dim % num_heads:
            raise ValueError(
                f"`num_heads` must divide the {feature_dim} features, but is "
                f"{num_heads}."
            )
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.num_heads = num_heads
        self.scale = scale
        self.gamma = gamma
        self.alpha = alpha
        self.decay = decay
        self.weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as a linear layer's
        self.register_buffer("mean_feature", torch.zeros(feature_dim))
        self._processes: Processes | None = None
        self._waiting: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        x = self._pieces(features)  # (N, K, d / K)
        w = self._pieces(self.weight)  # (C, K, d / K)
        direction = F.normalize(x, dim=-1)
        if self.training:
            self._follow(features)
        elif self.alpha:
            drift = F.normalize(self._pieces(self.mean_feature), dim=-1)  # (K, d / K)
            cosine = (direction * drift).sum(-1, keepdim=True)  # (N, K, 1)
            direction = direction - self.alpha * cosine * drift
        w = w / (w.norm(dim=-1, keepdim=True) + self.gamma)
        return (
            self.scale / self.num_heads * F.linear(direction.flatten(1), w.flatten(1))
        )

    def _pieces(self, x: Tensor) -> Tensor:
        size = self.feature_dim // self.num_heads
        return x.reshape(*x.shape[:-1], self.num_heads, size)

    def gather_batches(self, processes: Processes) -> None:
        """Let the average wait for :meth:`end_batch` from here on.

        For a batch that several processes share, or that is read in several pieces.
        """
        self._processes = processes

    @torch.no_grad()
    def end_batch(self) -> None:
        """Move the average by the mean of what all processes have read since then."""
        assert self._processes is not None
        total = self._processes.sum(torch.stack(self._waiting).sum(0))  # (d + 1,)
        self._waiting.clear()
        self._move(total[:-1] / total[-1])

    @torch.no_grad()
    def _follow(self, features: Tensor) -> None:
        if self._processes is None:
            self._move(features.mean(0))
            return
        num_samples = self.mean_feature.new_tensor([float(len(features))])
        sums = features.to(self.mean_feature).sum(0)
        self._waiting.append(torch.cat([sums, num_samples]))

    def _move(self, mean: Tensor) -> None:
        """Move the average; only its direction counts, so it may start at 0."""
        self.mean_feature.mul_(self.decay).add_(mean.to(self.mean_feature))
