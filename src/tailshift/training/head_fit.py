"""Heads fitted to all features at once, by L-BFGS to convergence."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from tailshift.data import SAMPLERS, Batches
from tailshift.data.feature_split import FeatureLoader, FeatureSplit
from tailshift.data.own_images import hold_out
from tailshift.losses import Loss, as_loss
from tailshift.models import CosineHead, Head, LinearHead, NormedLinearHead
from tailshift.training.head_problem import HeadProblem, Samples
from tailshift.training.loop import Metrics, Stopwatch, Trainer
from tailshift.training.weight_decay import JUDGED_SHARE, choose_decay
from tailshift.workers import StopRequest

FULL_STEPS = 300
"""The most L-BFGS steps of a fit."""


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
