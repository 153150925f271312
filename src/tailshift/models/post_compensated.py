"""A classifier whose logits are re-targeted to a prior that can be changed."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from tailshift.compensation import add_log_ratio, log_prior_ratio
from tailshift.deprecation import renamed_arguments, renamed_attribute
from tailshift.estimators.em import estimate_uncalibrated
from tailshift.losses import Loss
from tailshift.priors import VectorLike, as_prior
from tailshift.targets import Target, as_target_prior


class SupportsEstimate(Protocol):
    """Anything that tells the prior of unlabelled logits."""

    def estimate(self, logits: Any) -> Any:
        """Return the prior (C,) of logits (N, C)."""


class UncalibratedWarning(UserWarning):
    """A prior was estimated from probabilities that nothing was held out to check."""


class PostCompensated(nn.Module):
    """A classifier whose logits answer for a target prior that can be changed.

    Args:
        model: Any module that returns logits of shape (…, C).
        logit_prior: The prior that the model's logits carry, shape (C,).
        target_prior: The prior to answer for: a vector (C,), a name (``"uniform"``,
            ``"backward:10"`` …, see :class:`~tailshift.target_names.Shift`) or a file.
        estimator: What :meth:`adapt` estimates with, unless it is given another.
        source_counts: Training images of each class, shape (C,), for names that follow
            them.
        class_names: One per class, for names and files that name classes.

    Example:
        >>> model = PostCompensated(
        ...     nn.Identity(), logit_prior=[0.8, 0.2], target_prior=[0.5, 0.5]
        ... )
        >>> model(torch.tensor([[2.0, 1.0]]))
        tensor([[1.5300, 1.9163]])
        >>> model.set_target_prior("tweak:0:0.8")(torch.tensor([[2.0, 1.0]]))
        tensor([[2., 1.]])
    """

    log_ratio: Tensor
    trained_prior = renamed_attribute("trained_prior", "logit_prior")

    @renamed_arguments(trained_prior="logit_prior")
    def __init__(
        self,
        model: nn.Module,
        *,
        logit_prior: VectorLike,
        target_prior: Target,
        estimator: SupportsEstimate | None = None,
        source_counts: VectorLike | None = None,
        class_names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.estimator = estimator
        self.source_counts = source_counts
        self.class_names = class_names
        # Priors stay float64 whatever the module is cast to; only the sum is moved.
        self.logit_prior = as_prior(logit_prior, name="logit_prior")
        self.register_buffer("log_ratio", torch.zeros(len(self.logit_prior)))
        self.set_target_prior(target_prior)

    @classmethod
    def from_loss(
        cls,
        model: nn.Module,
        loss: Loss,
        *,
        target_prior: Target,
        source_prior: VectorLike | None = None,
        **settings: Any,
    ) -> Self:
        """Re-target a model by the logit prior that its training loss states.

        Use this when you train with a loss of this package and do not want to work
        out which prior the logits contain.

        Args:
            model: The trained module.
            loss: What it was trained with.
            target_prior: See the class.
            source_prior: Prior of the training data, shape (C,); for cross-entropy,
                whose logits contain it.
            **settings: Other arguments of the class.

        Example:
            >>> from tailshift.losses import CrossEntropyLoss, LADELoss
            >>> f, p_s, p_t = torch.tensor([[2.0, 1.0]]), [0.8, 0.2], [0.5, 0.5]
            >>> loss = LADELoss(p_s)
            >>> PostCompensated.from_loss(nn.Identity(), loss, target_prior=p_t)(f)
            tensor([[2., 1.]])
            >>> PostCompensated.from_loss(
            ...     nn.Identity(),
            ...     CrossEntropyLoss(),
            ...     target_prior=p_t,
            ...     source_prior=p_s,
            ... )(f)
            tensor([[1.5300, 1.9163]])
        """
        stated = loss.logit_prior
        if stated is None:
            raise ValueError(
                f"`loss` must state its logit prior, but {type(loss).__name__} does "
                "not. Build PostCompensated(model, logit_prior=..., "
                "target_prior=...), or measure the prior with measure_logit_prior."
            )
        p = source_prior if isinstance(stated, str) else stated
        if p is None:
            raise ValueError(
                f"`source_prior` is missing: logits trained with {type(loss).__name__} "
                "contain the prior of the training data. Give "
                "priors.from_counts(class_counts)."
            )
        return cls(model, logit_prior=p, target_prior=target_prior, **settings)

    def set_target_prior(self, target_prior: Target) -> "PostCompensated":
        """Answer for another prior from now on; returns the module itself.

        Args:
            target_prior: A vector (C,), a name or a file.
        """
        num_classes = len(self.logit_prior)
        p_t = as_target_prior(
            target_prior,
            num_classes=num_classes,
            source_counts=self.source_counts,
            class_names=self.class_names,
        )
        self.log_ratio.copy_(
            log_prior_ratio(self.logit_prior, p_t, num_classes=num_classes)
        )
        self.target_prior = p_t
        return self

    def adapt(
        self, loader: Iterable[Any], *, estimator: SupportsEstimate | None = None
    ) -> "PostCompensated":
        """Estimate the prior of unlabelled images, and answer for it from now on.

        Args:
            loader: Batches of the model's input: tensors, or tuples and lists that
                begin with one, as those of a ``DataLoader``; what follows is not read.
            estimator: Anything with ``estimate(logits)``, fitted on held-out logits of
                the same model: :class:`~tailshift.estimators.MAPEstimator` and its
                like. Without one, and without one from the constructor, the model's
                own probabilities are used as they are, with a warning.

        Returns:
            The module itself; ``target_prior`` is what was found.

        Example:
            >>> from tailshift.estimators import MAPEstimator
            >>> held_out = torch.randn(2000, 2).mul(2)
            >>> labels = torch.distributions.Categorical(logits=held_out).sample()
            >>> model = PostCompensated(
            ...     nn.Identity(), logit_prior=[0.5, 0.5], target_prior=[0.5, 0.5]
            ... )
            >>> unlabelled = held_out[labels == 1].split(100)
            >>> estimator = MAPEstimator().fit(held_out, labels)
            >>> model.adapt(unlabelled, estimator=estimator).target_prior.round(
            ...     decimals=1
            ... )
            tensor([0., 1.], dtype=torch.float64)
        """
        f = self._logits(loader)
        chosen = self.estimator if estimator is None else estimator
        found = self._uncalibrated(f) if chosen is None else chosen.estimate(f)
        return self.set_target_prior(found)

    @torch.no_grad()
    def _logits(self, loader: Iterable[Any]) -> Tensor:
        """Return the model's own logits of all batches, on the CPU, (N, C)."""
        device = next(self.model.parameters(), self.log_ratio).device
        modes = {module: module.training for module in self.model.modules()}
        parts = []
        self.model.eval()
        try:
            for batch in loader:
                images = batch[0] if isinstance(batch, list | tuple) else batch
                parts.append(self.model(images.to(device)).cpu())
        finally:
            for module, mode in modes.items():
                module.training = mode
        if not parts:
            raise ValueError(
                "`loader` must give a batch of images, but gives none. A generator "
                "that was read before is empty."
            )
        return torch.cat(parts)

    def _uncalibrated(self, f: Tensor) -> Tensor:
        """Return the prior that the model's own probabilities call for."""
        found = estimate_uncalibrated(f, self.logit_prior)
        warnings.warn(
            "the target prior is estimated from probabilities that were not checked on "
            "held-out data, and may be off. Give `estimator`, such as "
            "MAPEstimator().fit(held_out_logits, labels).",
            UncalibratedWarning,
            stacklevel=3,
        )
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the model's logits, compensated."""
        logits: Tensor = self.model(*args, **kwargs)
        if logits.shape[-1] != len(self.log_ratio):
            raise ValueError(
                f"`target_prior` has {len(self.log_ratio)} entries "
                f"but `logits` has {logits.shape[-1]} classes."
            )
        return add_log_ratio(logits, self.log_ratio)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return both priors, to be saved with the weights."""
        return {"logit_prior": self.logit_prior, "target_prior": self.target_prior}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore both priors."""
        name = "logit_prior" if "logit_prior" in state else "trained_prior"
        self.logit_prior = as_prior(state[name], name="logit_prior")
        self.set_target_prior(state["target_prior"])
