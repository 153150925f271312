"""A prior that follows a stream: batch by batch, with forgetting."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from tailshift.checks import ArrayLike
from tailshift.estimators.base import ESTIMATORS, CalibratorLike
from tailshift.estimators.likelihood import maximise
from tailshift.estimators.posteriors import Logits, Posteriors
from tailshift.estimators.tilt import TiltEstimator, tilted
from tailshift.priors import VectorLike

HALF_LIVES = 6  # what is older weighs less than 2 % and is dropped


@ESTIMATORS.register("online")
class OnlineEstimator(TiltEstimator):
    r"""MAP-EM over a stream in which a sample loses half its weight in ``half_life``.

    After each batch the prior maximises

    .. math:: \sum_i 2^{-t_i / h} \log \sum_c \frac{q_c}{m_c}\, p(c|x_i)
              + A \sum_c g_c \log q_c

    where :math:`t_i` counts the samples that came after i, and the centre g is the
    likeliest tilt of the source prior. Posteriors of the last six half-lives are kept.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
        half_life: :math:`h`, in samples.
        strength: A, in samples; by default one per class.

    Attributes:
        num_samples_: How many samples have come since ``fit`` or ``reset``.

    Example:
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> online = OnlineEstimator(half_life=200).fit(logits, labels)
        >>> for batch in logits[labels == 1].split(100):
        ...     prior = online.update(batch)
        >>> prior.round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
    """

    sentence = (
        "MAP-EM over a stream that forgets: a sample's weight halves in `half_life`."
    )

    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        half_life: float = 1000.0,
        strength: float | None = None,
    ) -> None:
        if not half_life > 0:
            raise ValueError(f"`half_life` must be positive, but is {half_life:g}.")
        super().__init__(
            logit_prior=logit_prior,
            source_prior=source_prior,
            calibrator=calibrator,
        )
        self.half_life = half_life
        self.strength = strength
        self.reset()

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> "OnlineEstimator":
        """Learn from held-out source data, and forget the stream."""
        super().fit(logits, labels)
        self.reset()
        return self

    def reset(self) -> None:
        """Forget the stream."""
        self._window: deque[Tensor] = deque()
        self.num_samples_ = 0

    def update(self, logits: Logits) -> Any:
        """Take a batch (N, C) of the stream and return the prior (C,) after it."""
        return self.estimate(logits)

    def _estimate(self, samples: Posteriors) -> Tensor:
        for block in samples:
            self._window.append(block)
            self.num_samples_ += len(block)
        self._forget()
        kept = torch.cat(list(self._window))
        self._samples = Posteriors.of(kept)
        age = torch.arange(len(kept) - 1, -1, -1, dtype=torch.float64)
        self._weights = torch.exp2(-age / self.half_life)[:, None]  # (N, 1)
        q, num_iter, converged = self._follow(self._weights, self.denominator_[:, None])
        self._report(num_iter, converged)
        return q[:, 0]

    def _sample_weights(self) -> Tensor:
        return self._weights[:, 0]

    def _follow(self, weights: Tensor, m: Tensor) -> tuple[Tensor, int, bool]:
        columns = weights.shape[1]
        start = torch.ones(columns, dtype=torch.float64)  # γ of the source
        gamma, steps, settled = self._climb(self._samples, m, start, weights)
        if columns == 1:
            self.gamma_ = gamma.item()
        center = tilted(self.source_prior_, gamma)
        strength = len(center) if self.strength is None else self.strength
        found = maximise(
            self._samples,
            m,
            start=center,
            weights=weights,
            pseudo_counts=strength * center,
            tolerance=1e-6,
        )
        return found.x, steps + found.num_iter, settled and found.converged

    def _forget(self) -> None:
        """Drop the oldest blocks while what follows them is long enough."""
        longest = HALF_LIVES * self.half_life
        size = sum(len(block) for block in self._window)
        while size - len(self._window[0]) >= longest:
            size -= len(self._window.popleft())
