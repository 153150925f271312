"""Gaussian mixtures with known posteriors, and digits with real ones."""

from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from tailshift import priors


@dataclass(frozen=True)
class Mixture:
    """Classes that are unit Gaussians around their means."""

    means: Tensor  # (C, d)
    source_prior: Tensor  # (C,)
    sharpness: float = 1.0  # logits times this: above 1 the model is overconfident

    def draw(self, prior: Tensor, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return logits that carry the source prior, and labels drawn by ``prior``."""
        g = torch.Generator().manual_seed(seed)
        y = torch.multinomial(prior, num_samples, replacement=True, generator=g)
        return self.logits(y, g), y

    def logits(self, y: Tensor, g: torch.Generator) -> Tensor:
        noise = torch.randn(len(y), self.means.shape[1], generator=g).double()
        x = self.means[y] + noise
        log_density = x @ self.means.T - self.means.square().sum(dim=1) / 2
        return self.sharpness * (log_density + self.source_prior.log())


def _mixture(num_classes, imbalance_ratio=20.0, spread=2.0, sharpness=1.0, dimension=8):
    g = torch.Generator().manual_seed(num_classes)
    means = spread * torch.randn(num_classes, dimension, generator=g).double()
    means = means / dimension**0.5 * 2**0.5
    counts = priors.long_tailed_counts(10_000, imbalance_ratio, num_classes)
    return Mixture(means, priors.from_counts(counts), sharpness)


@pytest.fixture
def mixture():
    """Make a mixture; the same arguments make the same one."""
    return _mixture


@dataclass(frozen=True)
class Digits:
    """Logits of a logistic regression on long-tailed digits, and who is held out."""

    logits: Tensor
    labels: Tensor
    counts: Tensor

    def split(self, seed: int) -> tuple[Tensor, list[Tensor]]:
        """Return held-out samples that follow the source prior, and the others."""
        g = torch.Generator().manual_seed(seed)
        held_out, pool = [], []
        for c in range(10):
            own = (self.labels == c).nonzero()[:, 0]
            own = own[torch.randperm(len(own), generator=g)]
            taken = max(1, int(40 * self.counts[c] / self.counts.max()))
            held_out.append(own[:taken])
            pool.append(own[40:100])
        return torch.cat(held_out), pool


@pytest.fixture(scope="session")
def digits():
    """Return the digits; read only."""
    x, y = load_digits(return_X_y=True)
    counts = priors.long_tailed_counts(60, 20, 10)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).numpy()
    x, y = torch.from_numpy(x[order]) / 16, torch.from_numpy(y[order]).long()
    train = torch.cat([(y == c).nonzero()[:n, 0] for c, n in enumerate(counts)])
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[torch.cat([(y == c).nonzero()[:60, 0] for c in range(10)])] = False
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double()
    x = x + 0.4 * noise  # or it would be too easy
    model = LogisticRegression(C=100.0, max_iter=2000).fit(x[train], y[train])
    logits = torch.from_numpy(model.decision_function(x[rest]))
    return Digits(logits, y[rest], counts)
