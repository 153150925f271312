"""The weight decay of a head, chosen on samples that are held out."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.training.head_problem import HeadProblem

DECAYS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Weight decays that are tried on held-out samples, from the largest on."""


TRIED_STEPS = 60
"""The most L-BFGS steps of a fit that only compares weight decays."""

JUDGED_SHARE = 0.2
"""Share of each class that a weight decay is chosen by."""


def choose_decay(problem: HeadProblem, held_out: Tensor, log_prior: Tensor) -> float:
    """Return the weight decay with the lowest loss on samples that were held out.

    Args:
        problem: The head, to be fitted to the other samples.
        held_out: Positions of those held out, shape (N,).
        log_prior: Logarithm of the prior that the head's logits carry, shape (C,).
    """
    tried = tried_losses(problem, held_out, log_prior)
    return min(tried, key=lambda decay: tried[decay].mean)


class LabelledLosses(NamedTuple):
    """Losses of samples under the uniform prior; classes count alike in their mean."""

    losses: Tensor
    """Negative log probability of the label, float64, shape (N,)."""
    labels: Tensor
    """Class indices, shape (N,)."""

    @property
    def mean(self) -> float:
        """Mean over classes of the mean of each, so that rare ones are heard."""
        return self.mean_of(self.losses)

    def mean_of(self, values: Tensor) -> float:
        """Return the same of other values of the samples, (N,)."""
        return float((self._weights * values).sum())

    def error_of(self, values: Tensor) -> float:
        """Return the standard error of that mean, samples being independent."""
        return float((self._weights * (values - self.mean_of(values))).norm())

    @property
    def _weights(self) -> Tensor:
        counts = torch.bincount(self.labels).double()
        return 1 / (counts[self.labels] * (counts > 0).sum())


def tried_losses(
    problem: HeadProblem, held_out: Tensor, log_prior: Tensor
) -> dict[float, LabelledLosses]:
    """Return the losses of samples that were held out, by weight decay.

    Decays fall until the mean loss rises.

    Args:
        problem: See :func:`choose_decay`.
        held_out: See there.
        log_prior: See there.
    """
    tried: dict[float, LabelledLosses] = {}
    for decay in DECAYS:
        problem.solve(decay, TRIED_STEPS)
        tried[decay] = _losses(problem, held_out, log_prior)
        if tried[decay].mean > min(found.mean for found in tried.values()):
            break  # it only gets worse from here
    return tried


@torch.no_grad()
def _losses(problem: HeadProblem, rows: Tensor, log_prior: Tensor) -> LabelledLosses:
    split, parts = problem.samples.split, []
    for ids in torch.split(rows, problem.samples.chunk_size):
        logits = problem.head(problem.scaled(split.take(ids))) - log_prior
        parts.append(F.cross_entropy(logits, split.labels[ids], reduction="none"))
    return LabelledLosses(torch.cat(parts).double(), split.labels[rows])
