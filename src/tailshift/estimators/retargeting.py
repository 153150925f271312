"""Map logits to log probabilities under a target prior."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tailshift.calibration import Calibrator
from tailshift.checks import check_logits
from tailshift.compensation import log_prior_ratio
from tailshift.estimators.known_classes import KnownClasses


@dataclass(frozen=True, eq=False)
class Retargeting:
    """Maps logits to log probabilities under a target prior.

    Attributes:
        logit_prior: Prior of the logits, shape (C,).
        target_prior: Prior in use, shape (C,).
        held_out_prior: Prior that calibrated logits hold for, shape (K,).
        calibrator: Fitted calibrator; None if logits are used as they are.
        known: The K classes that can occur, out of C.
    """

    logit_prior: Tensor
    target_prior: Tensor
    held_out_prior: Tensor
    calibrator: Calibrator | None
    known: KnownClasses

    def to(self, target_prior: Tensor) -> "Retargeting":
        """Return the same for another target prior, shape (C,)."""
        return replace(self, target_prior=target_prior)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return log probabilities of logits (N, C), float64."""
        f = check_logits(logits).double()
        if self.known.is_everything:
            return self._of_known(f)
        plain = _moved(f, self.logit_prior, self.target_prior).log_softmax(dim=1)
        mass = plain[:, self.known.ids].logsumexp(dim=1, keepdim=True)
        plain[:, self.known.ids] = mass + self._of_known(self.known.logits(f))
        return plain

    def _of_known(self, f: Tensor) -> Tensor:
        """Return log probabilities given that a known class occurs, (N, K)."""
        before, after = map(self.known.prior, (self.logit_prior, self.target_prior))
        f = f.double()
        if self.calibrator is not None:
            f = _moved(f, before, self.held_out_prior)
            f, before = (
                torch.as_tensor(self.calibrator.transform(f)),
                self.held_out_prior,
            )
        return _moved(f, before, after).log_softmax(dim=1)


def _moved(f: Tensor, before: Tensor, after: Tensor) -> Tensor:
    return f + log_prior_ratio(before, after, num_classes=f.shape[1])
