"""Heads fitted to all features at once, by L-BFGS to convergence."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift import priors
from tailshift.data import SAMPLERS, Batches
from tailshift.data.features import FeatureLoader, FeatureSplit
from tailshift.data.own_images import hold_out
from tailshift.losses import Loss, as_loss, loss_over_processes
from tailshift.models import CosineHead, Head, LinearHead, NormedLinearHead
from tailshift.processes import Processes
from tailshift.training.interrupt import StopRequest
from tailshift.training.loop import Metrics, Stopwatch, Trainer

DECAYS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Weight decays that are tried on held-out samples, from the largest on."""

JUDGED_SHARE = 0.2
"""Share of each class that a weight decay is chosen by."""

MOST_LOGITS = 2**22
"""Logits that are computed at a time; more are taken in chunks of samples.

At 16 MiB malloc mostly keeps a chunk's memory for the next one; more than 32 it gives
back to the system each time, and to get it anew took half the time of a pass."""

FULL_STEPS, TRIED_STEPS = 300, 60
"""The most L-BFGS steps of a fit, and of one that only compares weight decays."""

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


FITTED_AT_ONCE = (LinearHead, CosineHead, NormedLinearHead)
"""Heads whose logits are a smooth function of their weights alone."""


def fits_at_once(head: Head, loss: nn.Module, loader: Batches) -> bool:
    """Return whether a head can be fitted to all features of a bank at once.

    Not if the head keeps statistics of what it has seen, the loss changes with the
    epoch, or a sampler draws some classes more often.
    """
    if not isinstance(loader, FeatureLoader) or type(head) not in FITTED_AT_ONCE:
        return False
    is_fixed = type(as_loss(loss)).begin_epoch is Loss.begin_epoch
    return is_fixed and loader.plan.sampler is SAMPLERS.get("instance")


@dataclass
class HeadFit(Trainer):
    """A stage whose head is fitted to a bank's features at once: one epoch."""

    split: FeatureSplit = field(kw_only=True)
    head: Head = field(kw_only=True)
    decay: float | None = field(kw_only=True)
    """Weight decay; None chooses it on held-out samples."""
    log_prior: Tensor = field(kw_only=True)
    """Logarithm of the prior that the logits carry, shape (C,)."""

    @classmethod
    def of(
        cls, trainer: Trainer, head: Head, *, decay: float | None, prior: Tensor
    ) -> "HeadFit":
        """Return what does a trainer's stage at once.

        Args:
            trainer: Trainer of the stage, on a bank.
            head: The head that it trains.
            decay: Weight decay; None chooses it.
            prior: The prior that the logits carry, shape (C,).
        """
        assert isinstance(trainer.loader, FeatureLoader)
        own = {f.name: getattr(trainer, f.name) for f in fields(trainer)}
        own |= {"epochs": 1, "optimizer": None, "divided": None}
        return cls(
            **own,
            split=trainer.loader.split,
            head=head,
            decay=decay,
            log_prior=prior.log().float(),
        )

    def fit(
        self,
        *,
        on_epoch: Callable[[Metrics], None],
        stop: StopRequest,
        log: Callable[[float, float, int], None] = lambda loss, seconds, images: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> bool:
        """Fit the head; return False if a stop was asked for before it was done.

        Args:
            on_epoch: Called with the metrics when it is done.
            stop: Checked before each pass over the samples.
            log: Not called.
            on_step: Not called.
        """
        if self.position.epoch >= self.epochs:
            return True
        watch = Stopwatch()
        start = {k: v.clone() for k, v in self.head.state_dict().items()}
        decay = self._decay(stop) if self.decay is None else self.decay
        self.head.load_state_dict(start)
        problem = self._problem(torch.arange(len(self.split)), stop)
        loss = problem.solve(decay, FULL_STEPS)
        if stop.is_set:
            self.head.load_state_dict(start)
            return False
        self.sample_ids = problem.samples.rows
        self.check_finite(loss)
        num_samples = len(problem.samples)
        self.position.add(
            images=num_samples,
            loss=loss * num_samples,
            correct=self._num_correct(problem),
            **watch.lap()._asdict(),
        )
        problem.put_back()
        on_epoch(self.end_epoch(0.0) | {"weight_decay": decay})
        return True

    def _problem(self, rows: Tensor, stop: StopRequest) -> HeadProblem:
        samples = Samples(self.split, rows, self.head.num_classes)
        return HeadProblem(self.head, self.loss, samples, lambda: stop.is_set)

    def _decay(self, stop: StopRequest) -> float:
        """Return the weight decay that suits a fifth of each class, held out."""
        if isinstance(self.head, CosineHead):
            return 0.0  # it would change lengths alone
        keys = [str(row) for row in range(len(self.split))]
        held = hold_out(keys, self.split.labels, {"val": JUDGED_SHARE})
        train, val = (torch.from_numpy(held[part]) for part in ("train", "val"))
        return choose_decay(self._problem(train, stop), val, self.log_prior)

    @torch.no_grad()
    def _num_correct(self, problem: HeadProblem) -> int:
        hits = 0
        for ids, view in problem.samples.chunks():
            logits = problem.head(problem.scaled(self.split.take(ids, view)))
            hits += int((logits.argmax(1) == self.split.labels[ids]).sum())
        return hits
