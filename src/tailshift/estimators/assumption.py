"""Test whether the target is a mixture of the known classes."""

import torch
from torch import Tensor

from tailshift.calibration import LOWEST
from tailshift.estimators.likelihood import TINY
from tailshift.estimators.replicates import Replicate, Replicates

PSEUDO_LABELS = 20.0  # per class: labels that posteriors are worth in the mixture
POSTERIOR_RIDGE = 1.0  # of the regression on posteriors
NUM_PLAIN = 4  # statistics that are not of one class
MIN_MASS = 5.0  # sum of held-out posteriors of a class for its statistic to count
NUM_NEIGHBOURS = 5
MAX_NEIGHBOUR_SAMPLES = 2000


class AssumptionTest:
    r"""Compare the target with the mixture of held-out samples that it should be.

    Statistics are means over the target less means over the held-out samples
    re-weighted by :math:`q_y / p_h(y)`, of the log of the largest posterior, entropy,
    log-sum-exp and standard deviation of the logits, and each class's part of the
    entropy; with features, also the log distance to the nearest held-out features. A
    linear function of the posteriors is subtracted from each, so mixtures hardly move
    it. The largest difference, in its standard deviations, is judged by the replicates,
    in which the prior is fitted again [rabanser2019] [lipton2018].

    Args:
        replicates: Replicates around the estimate.
        logits: Logits of the unlabelled samples in the replicates, shape (N, C).
        held_out_logits: Logits of the held-out samples in them, shape (n, C).
        novelty: A statistic of features, of both samples, (N,) and (n,).
    """

    def __init__(
        self,
        replicates: Replicates,
        logits: Tensor,
        held_out_logits: Tensor,
        novelty: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._replicates = replicates
        log_p, log_p_h = replicates.target.log_p, replicates.held_out.log_p
        ratio = replicates.prior / log_p_h.exp().double().mean(dim=0)
        parts = [
            _of_logits(logits, log_p, ratio),
            _of_logits(held_out_logits, log_p_h, ratio),
        ]
        if novelty is not None:
            parts = [
                torch.cat([t, s[:, None].double()], dim=1)
                for t, s in zip(parts, novelty, strict=True)
            ]
        target, rest = _residuals(parts, [log_p, log_p_h])
        # Few held-out samples near a class say nothing of its part of the entropy.
        is_used = torch.ones(target.shape[1], dtype=torch.bool)
        num_plain = NUM_PLAIN + log_p.shape[1]
        mass = log_p_h.exp().sum(dim=0) * replicates.held_out.worth
        is_used[NUM_PLAIN:num_plain] = mass >= MIN_MASS
        self._target, self._held_out = target[:, is_used], rest[:, is_used]
        labels = replicates.labels
        self._labels = torch.nn.functional.one_hot(labels, log_p.shape[1]).float()
        self._gaps: list[Tensor] = []

    def add(self, replicate: Replicate) -> None:
        """Take B replicates into account."""
        self._gaps.append(self._gap(replicate, PSEUDO_LABELS))

    def p_value(self) -> float:
        """Return the p-value of the test, at least 1 / (replicates + 1)."""
        center = self._replicates.center()
        found = self._gap(center, PSEUDO_LABELS)[0]
        drawn = torch.cat(self._gaps)
        # What labels and posteriors disagree on is noise and what the calibrator
        # cannot fit: neither contradicts the assumption.
        by_labels, by_posteriors = (self._gap(center, k)[0] for k in (1e-6, 1e6))
        deviation = drawn.std(dim=0).clamp_min(1e-9)
        # A row that stands for many samples varies as one.
        made = self._replicates
        worth = max(made.target.worth, made.held_out.worth)
        spread = (worth * deviation**2 + (by_labels - by_posteriors) ** 2).sqrt()
        largest = (found / spread).abs().max()
        null = ((drawn - found) / deviation).abs().amax(dim=1)  # (B,)
        return float(1 + int((null >= largest).sum())) / (1 + len(null))

    def _gap(self, replicate: Replicate, k: float) -> Tensor:
        """Return mean statistics of the target less the mixture's, (B, K)."""
        v_t = replicate.weights / replicate.weights.sum(dim=1, keepdim=True)
        v, p = replicate.held_out_weights, replicate.p_held_out
        # The mean of a class is over its labels, and over k more as posteriors say.
        share = replicate.prior.float() / (v @ self._labels + k)  # (B, C)
        mass = torch.bmm(v[:, None], p)[:, 0].clamp_min(1e-30)
        by_posterior = torch.bmm(p, (k * share / mass)[:, :, None])[:, :, 0]
        w = v * (share @ self._labels.T + by_posterior)
        return (v_t @ self._target - w @ self._held_out).double()


def _of_logits(f: Tensor, log_p: Tensor, ratio: Tensor) -> Tensor:
    """Return the statistics of logits, shape (N, 4 + C)."""
    f = f.double()
    log_r = (log_p + ratio.clamp_min(TINY).log()).log_softmax(dim=1).clamp_min(LOWEST)
    entropy = -log_r.exp() * log_r  # each class's part
    f = f.clamp_min(f.amax(dim=1, keepdim=True) + LOWEST)  # −inf has no deviation
    of_sample = [
        log_r.amax(dim=1),
        entropy.sum(dim=1),
        f.logsumexp(dim=1),
        f.std(dim=1),
    ]
    return torch.cat([torch.stack(of_sample, dim=1), entropy], dim=1)


def _residuals(
    statistics: list[Tensor], log_posteriors: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return standardised statistics less what posteriors predict, (N, K), (n, K)."""
    p = torch.cat(log_posteriors).double().exp()
    t = torch.cat(statistics)
    t = (t - t.mean(dim=0)) / t.std(dim=0).clamp_min(1e-12)
    gram = p.T @ p + POSTERIOR_RIDGE * torch.eye(p.shape[1])
    rest = (t - p @ torch.linalg.solve(gram, p.T @ t)).float()
    return rest[: len(statistics[0])], rest[len(statistics[0]) :]


def novelty(features: Tensor, held_out_features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log distance of features to the nearest held-out ones.

    A held-out sample is not its own neighbour. Use it as a statistic of
    :class:`AssumptionTest`: samples of a new class are far from all known ones.

    Args:
        features: Of the unlabelled samples, shape (N, D).
        held_out_features: Of the held-out samples, shape (n, D).

    Example:
        >>> known = torch.eye(6)
        >>> far, near = novelty(10 * torch.ones(2, 6), known)
        >>> bool(far.min() > near.max())
        True
    """
    known = held_out_features.float()
    mean, deviation = known.mean(dim=0), known.std(dim=0).clamp_min(1e-6)
    known, new = ((x.float() - mean) / deviation for x in (known, features))
    reference = known[:MAX_NEIGHBOUR_SAMPLES]
    k = min(NUM_NEIGHBOURS, len(reference) - 1)
    far = torch.cdist(new, reference).topk(k, largest=False).values[:, -1]
    own = torch.cdist(known, reference)
    own.fill_diagonal_(torch.inf)
    near = own.topk(k, largest=False).values[:, -1]
    return far.clamp_min(1e-6).log(), near.clamp_min(1e-6).log()
