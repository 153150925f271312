"""The nearest prior to a vector."""

import torch
from torch import Tensor


def project_to_simplex(vector: Tensor) -> Tensor:
    r"""Return the prior nearest to a vector (C,) in Euclidean distance.

    .. math:: q_c = \max(v_c - \theta, 0), \quad \theta
              \text{ such that } \sum_c q_c = 1

    [duchi2008].

    Example:
        >>> project_to_simplex(torch.tensor([0.9, 0.4, -0.5]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    ordered = vector.sort(descending=True).values
    rank = torch.arange(1, len(vector) + 1, dtype=vector.dtype)
    thresholds = (ordered.cumsum(0) - 1) / rank
    support = int((ordered > thresholds).sum())
    q = (vector - thresholds[support - 1]).clamp_min(0)
    return q / q.sum()
