"""The loss of a head over all features, and its minimisation by L-BFGS."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift import priors
from tailshift.data.feature_split import FeatureSplit
from tailshift.losses import as_loss, loss_over_processes
from tailshift.models import CosineHead, Head, LinearHead
from tailshift.processes import Processes

MOST_LOGITS = 2**22
"""Logits that are computed at a time; more are taken in chunks of samples.

At 16 MiB malloc mostly keeps a chunk's memory for the next one; more than 32 it gives
back to the system each time, and to get it anew took half the time of a pass."""


MOST_TRIALS = 10
"""The most evaluations of the loss in a step."""


LEAST_GAIN, PATIENCE = 3e-5, 5
"""A fit has converged when so many steps lower the loss by less than this, in nats."""


@dataclass
class Samples:
    """Samples to fit to, in chunks; all views of a sample stand beside each other."""

    split: FeatureSplit
    rows: Tensor
    """Positions in the split, shape (N,)."""
    num_classes: int

    @property
    def chunk_size(self) -> int:
        """Samples in a chunk."""
        return max(MOST_LOGITS // self.num_classes, 1)

    def __len__(self) -> int:
        return len(self.rows) * len(self.split.features)

    def chunks(self) -> "list[tuple[Tensor, int]]":
        """Return the rows and the view of each chunk."""
        views = range(len(self.split.features))
        return [
            (ids, v) for v in views for ids in torch.split(self.rows, self.chunk_size)
        ]

    @cached_property
    def labels(self) -> Tensor:
        """Labels of all views of all samples, in no certain order, shape (N,)."""
        return self.split.labels[self.rows].repeat(len(self.split.features))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the features' mean, (d,), and covariance, (d, d), in float64."""
        dim = self.split.features.shape[2]
        total = torch.zeros(dim, dtype=torch.float64)
        products = torch.zeros(dim, dim, dtype=torch.float64)
        for ids, view in self.chunks():
            for part in torch.split(ids, 8192):
                x = self.split.take(part, view)
                total += x.double().sum(0)
                products += x.T @ x
        mean = total / len(self)
        return mean, products / len(self) - mean.outer(mean)

    def mean_directions(self) -> Tensor:
        """Return each class's mean of x / ‖x‖, scaled to length 1, (C, d), in float64.

        It is 0 for a class without samples.
        """
        dim = self.split.features.shape[2]
        totals = torch.zeros(self.num_classes, dim, dtype=torch.float64)
        for ids, view in self.chunks():
            for part in torch.split(ids, 8192):
                x = F.normalize(self.split.take(part, view))
                totals.index_add_(0, self.split.labels[part], x.double())
        return F.normalize(totals)


@dataclass(frozen=True)
class ChunkSums(Processes):
    """Chunks that one process reads in turn, in the place of processes.

    What they would send to each other is collected in a pass over all of them, and
    found again in the next one.
    """

    sums: list[list[Tensor]] = field(default_factory=list, repr=False)
    """What each chunk has sent, in order."""
    collected_for: int | None = None
    """The chunk that is read for what it sends; None if all is known."""
    num_asked: "Iterator[int]" = field(default_factory=itertools.count, repr=False)
    """Counts what a chunk has asked the others for."""

    @classmethod
    def collect(cls, sums: list[list[Tensor]], chunk: int) -> "ChunkSums":
        """Return what notes in ``sums`` what a chunk sends."""
        return cls(len(sums), sums=sums, collected_for=chunk)

    @classmethod
    def replay(cls, sums: list[list[Tensor]]) -> "ChunkSums":
        """Return what answers a chunk with what all of them sent."""
        return cls(len(sums), sums=sums)

    def start_gather(self, values: Tensor) -> Callable[[], Tensor]:
        """Return what gives the values (…) of all chunks, shape (W, …)."""
        if self.collected_for is not None:
            self.sums[self.collected_for].append(values.detach())
            return lambda: values.detach()[None].expand(self.world_size, *values.shape)
        number = next(self.num_asked)
        return lambda: torch.stack([sent[number] for sent in self.sums])

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over chunks, without gradient."""
        return self.gather(values).sum(0)


class HeadProblem:
    r"""The penalised loss of a head over all samples, and its minimisation.

    .. math:: \min_w \frac{1}{N} \sum_k n_k \, \ell(h_w(x_k), y_k)
        + \frac{\lambda}{2} \lVert w \rVert^2

    over chunks k of :math:`n_k` samples, which bound the memory and do not change the
    loss: one that is no mean over samples, such as LADE, is that of all of them. A
    linear head is fitted to features of mean 0 and deviation 1, in which the penalty is
    meant, and then put back; biases have none.

    A linear head starts from 0: its problem is convex, and where it starts does not
    matter. That of a cosine head is not, and it starts from the mean direction of the
    features of each class.

    L-BFGS works on :math:`R_c^{-1} w_c` for each class c, with
    :math:`R_c = (p_c \Sigma + \lambda)^{-1/2}`, its share :math:`p_c` of
    the samples and the features' covariance :math:`\Sigma`: the curvature is then about
    the same in all directions, and tens of steps do what takes hundreds otherwise.

    Args:
        head: Fitted in place.
        loss: Maps (logits, labels) to a scalar.
        samples: What it is fitted to.
        stop: Asked before each step; ends the fit where it stands.
    """

    def __init__(
        self,
        head: Head,
        loss: nn.Module,
        samples: Samples,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.head, self.loss, self.samples, self.stop = head, loss, samples, stop
        self.is_linear = type(head) is LinearHead
        self.is_penalised = not isinstance(head, CosineHead)  # the length tells nothing
        self.mean = torch.zeros(head.feature_dim)
        self.deviation = torch.ones(head.feature_dim)
        if isinstance(head, LinearHead):
            mean, covariance = samples.moments()
            deviation = covariance.diagonal().clamp_min(0).sqrt()
            floor = 1e-3 * float(deviation.mean()) or 1.0  # of features that never vary
            deviation = deviation.clamp_min(floor)
            self.mean, self.deviation = mean.float(), deviation.float()
            scaled = covariance / deviation.outer(deviation)
            self._spectrum = torch.linalg.eigh(scaled)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        elif isinstance(head, CosineHead):
            means = samples.mean_directions().to(head.weight)
            has_samples = means.any(1, keepdim=True)
            head.weight.data.copy_(torch.where(has_samples, means, head.weight.data))

    def solve(self, decay: float, max_steps: int) -> float:
        """Minimise from the weights there are; return the loss that is reached.

        Args:
            decay: λ, the penalty.
            max_steps: L-BFGS steps at most.
        """
        parameters = [p for p in self.head.parameters() if p.requires_grad]
        to_weights, from_weights = self._change_of_variables(decay)
        variables = [from_weights(p.detach()).requires_grad_() for p in parameters]
        optimizer = torch.optim.LBFGS(
            variables,
            max_iter=1,
            max_eval=MOST_TRIALS,
            history_size=20,
            line_search_fn="strong_wolfe",
            tolerance_change=0.0,
            tolerance_grad=0.0,
        )
        last: list[Tensor] = []
        value = math.nan

        def evaluate() -> float:
            nonlocal value
            if last and all(map(torch.equal, last, variables)):
                return value  # a step begins where the one before has ended
            last[:] = [v.detach().clone() for v in variables]
            for p, v in zip(parameters, last, strict=True):
                p.data.copy_(to_weights(v))
                p.grad = None
            value = self.accumulate()
            for p, v in zip(parameters, variables, strict=True):
                assert p.grad is not None
                if p.ndim > 1 and self.is_penalised:
                    value += decay / 2 * float(p.detach().double().square().sum())
                    p.grad.add_(p.detach(), alpha=decay)
                v.grad = to_weights(p.grad)  # R is symmetric
            return value

        losses: list[float] = []
        while len(losses) < max_steps and not self.stop():
            now = float(optimizer.step(evaluate))  # type: ignore[no-untyped-call] # torch's
            losses.append(now)
            before = losses[-PATIENCE - 1] if len(losses) > PATIENCE else math.inf
            if not math.isfinite(now) or before - now <= LEAST_GAIN:
                break
        for p, v in zip(parameters, variables, strict=True):
            p.data.copy_(to_weights(v.detach()))
        return losses[-1] if losses else math.nan

    def _change_of_variables(
        self, decay: float
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """Return the maps from L-BFGS's variables to weights, and back."""
        if not self.is_linear:
            return Tensor.clone, Tensor.clone
        values, vectors = self._spectrum
        counts = torch.bincount(self.samples.labels, minlength=self.head.num_classes)
        shares = priors.from_counts(counts.clamp_min(1))
        roots = (shares.outer(values.clamp_min(0)) + max(decay, 1e-8)).sqrt().float()
        basis, bias_roots = vectors.float(), shares.sqrt().float()

        def to_weights(v: Tensor) -> Tensor:
            return v @ basis / roots @ basis.T if v.ndim > 1 else v / bias_roots

        def from_weights(w: Tensor) -> Tensor:
            return w @ basis * roots @ basis.T if w.ndim > 1 else w * bias_roots

        return to_weights, from_weights

    def accumulate(self) -> float:
        """Add the gradient of the loss of all samples to the head's; return the loss.

        If the loss spans all samples, a pass before collects the sums that join them.
        """
        chunks, total = self.samples.chunks(), 0.0
        sums: list[list[Tensor]] = [[] for _ in chunks]
        if as_loss(self.loss).spans_batch and len(chunks) > 1:
            with torch.no_grad():
                for number, chunk in enumerate(chunks):
                    self._chunk_loss(*chunk, ChunkSums.collect(sums, number))
        for chunk in chunks:
            loss = self._chunk_loss(*chunk, ChunkSums.replay(sums)) / len(chunks)
            loss.backward()  # type: ignore[no-untyped-call] # torch's
            total += float(loss.detach())
        return total

    def _chunk_loss(self, ids: Tensor, view: int, chunks: "ChunkSums") -> Tensor:
        """Return what averages over chunks to the loss of all samples."""
        labels = self.samples.split.labels[ids]
        logits = self.head(self.scaled(self.samples.split.take(ids, view)))
        if chunks.world_size == 1:
            value: Tensor = self.loss(logits, labels)
            return value
        known = chunks.knowing(labels, self.samples.labels)
        return loss_over_processes(self.loss, logits, labels, known)

    def scaled(self, x: Tensor) -> Tensor:
        """Return features as the head sees them while it is fitted."""
        return x.sub_(self.mean).div_(self.deviation) if self.is_linear else x

    @torch.no_grad()
    def put_back(self) -> None:
        """Let a linear head take features as they are."""
        if not isinstance(self.head, LinearHead):
            return
        weight, bias = self.head.weight, self.head.bias
        weight.div_(self.deviation)
        bias.sub_(weight @ self.mean)
