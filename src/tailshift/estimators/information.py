"""How many labelled samples an estimate from unlabelled ones is worth."""

from torch import Tensor

SUMMED_ELEMENTS = 2**23  # posteriors that information is summed over, at most


def effective_samples(
    posteriors: Tensor, target_prior: Tensor, denominator: Tensor, weights: Tensor
) -> float:
    r"""Return the number of labels that tell the prior as well as unlabelled samples.

    .. math:: N\, \frac{\mathrm{tr}\,\mathrm{Cov}(r)}{\mathrm{tr}\,\mathrm{Cov}(y)}
              = \sum_i v_i\, \frac{\sum_c r_{ic}^2 - \sum_c q_c^2}{1 - \sum_c q_c^2}

    with responsibilities :math:`r_i \propto q\, p(\cdot|x_i) / m`, that is posteriors
    under the estimate. This is the share of the labels' information about q that the
    likelihood has without them, weighted by q over the directions: all of it if the
    model is always sure, none if its answers never differ. For two classes it is the
    ratio of the Fisher informations.

    It counts what the samples say. Where classes are confused with each other the
    variance can be larger still; and the error of m is left out: it is the same for all
    sites that one model is sent to, and no reason to trust one less than the others.

    Args:
        posteriors: Calibrated, for the source prior, shape (N, C).
        target_prior: q, the estimate, shape (C,).
        denominator: m, their mean on held-out data, positive, shape (C,).
        weights: v, how much each sample counts, shape (N,).

    Returns:
        At least 0, and at most the sum of the weights.

    Example:
        >>> import torch
        >>> q, v = torch.full((2,), 0.5), torch.ones(4)
        >>> sure, blind = torch.eye(2)[[0, 0, 1, 1]], torch.full((4, 2), 0.5)
        >>> [effective_samples(p, q, q, v) for p in (sure, blind)]
        [4.0, 0.0]
    """
    q, v = target_prior, weights
    r = posteriors * (q / denominator)
    r = r / r.sum(dim=1, keepdim=True)
    known = (v * r.square().sum(dim=1)).sum() / v.sum()
    spread = 1 - q.square().sum()
    if spread <= 0:  # one class alone, of which every sample is sure
        return v.sum().item()
    share = (known - q.square().sum()) / spread
    return float(share.clamp(0, 1) * v.sum())
