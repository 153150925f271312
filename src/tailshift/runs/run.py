"""A run: the result of training, and the input of everything after it."""

import copy
import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailshift.config import RunConfig
from tailshift.data.memory import Normalisation
from tailshift.deprecation import renamed_attribute
from tailshift.estimators import adapt
from tailshift.methods.experts import ExpertMethod
from tailshift.methods.sade import learn_shares_from_images
from tailshift.metrics import class_groups
from tailshift.models import Classifier, PostCompensated
from tailshift.predictions import Predictions
from tailshift.priors import from_counts
from tailshift.runs.files import (
    FACTS,
    WEIGHTS,
    RunFacts,
    load_weights,
    predictions_path,
    read_config,
    read_environment,
    read_facts,
    read_metrics,
    resume_command,
)
from tailshift.runs.network import build_network
from tailshift.targets import Target, as_target_prior


class AdaptedExperts(NamedTuple):
    """A model of experts adapted to a target, with its logit prior."""

    model: Classifier
    """In evaluation mode, on the CPU."""
    shares: Tensor
    """Weight of each expert, float64, sums to 1, shape (3,)."""
    logit_prior: Tensor
    """Logit prior with these weights, float64, shape (C,)."""


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not.

    Attributes:
        directory: Run directory.
        config: Configuration of the run.
        facts: Facts about the data, and the state of the run.
    """

    directory: Path
    config: RunConfig
    facts: RunFacts

    @property
    def is_finished(self) -> bool:
        """Whether training reached its last epoch."""
        return self.facts.state == "finished"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names, in the order of the logits."""
        return self.facts.class_names

    @property
    def source_counts(self) -> Tensor:
        """Training images of each class, int64, shape (C,)."""
        return torch.tensor(self.facts.source_counts)

    @property
    def source_prior(self) -> Tensor:
        """Source prior :math:`p_s` of the training set, float64, shape (C,)."""
        return from_counts(self.source_counts)

    trained_prior = renamed_attribute("trained_prior", "logit_prior")

    @property
    def logit_prior(self) -> Tensor:
        """Logit prior of the model, float64, shape (C,)."""
        return self.config.logit_prior(self.source_counts)

    @property
    def groups(self) -> dict[str, Tensor]:
        """Class ids of the groups ``"many"``, ``"medium"`` and ``"few"``.

        Training images that were held out count too.
        """
        return class_groups(self.group_counts)

    @property
    def group_counts(self) -> Tensor:
        """Class counts that define the groups, shape (C,)."""
        return torch.tensor(self.facts.full_counts or self.facts.source_counts)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, commit, hardware and command."""
        return read_environment(self.directory)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        return read_metrics(self.directory)

    @cached_property
    def model(self) -> Classifier:
        """The trained classifier, in evaluation mode on the CPU."""
        facts = self.facts
        with torch.inference_mode(False):  # inference tensors cannot be exported
            model = build_network(
                self.config,
                num_classes=len(facts.class_names),
                in_channels=facts.in_channels,
                image_size=facts.image_size,
                stage=facts.stage,
                is_filled=True,
            )
            load_weights(self.directory / WEIGHTS, model)
        return model.eval()

    def predictions(self, split: str = "test") -> Predictions:
        """Return the saved logits of a split: log posteriors up to a constant.

        Args:
            split: ``"val"`` or ``"test"``.
        """
        path = predictions_path(self.directory, split)
        if not path.is_file():
            saved = sorted(file.stem for file in path.parent.glob("*.safetensors"))
            raise FileNotFoundError(
                f"{self.directory} has no logits of split {split!r}, only of: "
                f"{', '.join(saved) or 'none'}. Finish it with "
                f"`{resume_command(self.directory)}`."
            )
        predictions = Predictions.load(path)
        if self.facts.log_posteriors:
            return predictions
        f = self.config.method.log_posteriors(predictions.logits)
        same = f is predictions.logits
        return predictions if same else dataclasses.replace(predictions, logits=f)

    def target_prior(self, target: Target) -> Tensor:
        """Return the target prior :math:`p_t` of a name, file or vector, shape (C,)."""
        return as_target_prior(
            target,
            num_classes=len(self.class_names),
            source_counts=self.source_counts,
            class_names=self.class_names,
        )

    def retarget(self, prior: Target) -> PostCompensated:
        """Return the model re-targeted to another prior.

        Its ``adapt`` method uses the run's validation logits, if there are any, to
        estimate the target prior. It keeps the source prior if the data do not support
        an estimate.

        Args:
            prior: Target prior :math:`p_t`: a vector (C,), a name (``"uniform"``,
                ``"backward:10"`` …) or a file of counts or shares.
        """
        module = PostCompensated(
            self.model,
            logit_prior=self.logit_prior,
            target_prior=prior,
            estimator=ValidationEstimator(self) if self.has_val_logits else None,
            source_counts=self.source_counts,
            class_names=self.class_names,
        )
        return module.eval()

    def adapt_experts(
        self, images: Tensor, *, epochs: int = 5, batch_size: int = 128, seed: int = 0
    ) -> "AdaptedExperts":
        """Return a copy of a model of experts with weights learnt for some images.

        The experts' weights are learnt without labels, from the agreement of two random
        views of each image, drawn again in each epoch [zhang2022].

        Args:
            images: Pixels of the target in the format of the model's data set, uint8,
                shape (N, c, H, W).
            epochs: Number of passes over the images. The weights need a few hundred
                steps, so a small target needs more than 5 epochs.
            batch_size: Images per step.
            seed: Seed of the order of the images and of their views.
        """
        method = self.config.method
        if not isinstance(method, ExpertMethod):
            raise ValueError(
                f"`adapt_experts` is for runs of sade or balpoe, but {self.directory} "
                f"is one of {self.config.method_name}. `retarget` adapts any run."
            )
        model = copy.deepcopy(self.model)
        shares = learn_shares_from_images(
            model,
            images,
            Normalisation(self.facts.mean, self.facts.std),
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
        )
        model.head.get_buffer("shares").copy_(shares)
        counts = self.config.sampled_counts(self.source_counts, method.stages()[-1])
        return AdaptedExperts(model, shares, method.prior_of_shares(counts, shares))

    @property
    def has_val_logits(self) -> bool:
        """Whether the run has validation logits."""
        return predictions_path(self.directory, "val").is_file()


@dataclass(frozen=True)
class ValidationEstimator:
    """Estimate priors with a run's validation logits, which are read when needed."""

    run: Run

    def estimate(self, logits: Tensor) -> Tensor:
        """Estimate the prior of unlabelled logits; if in doubt the source prior."""
        return adapt(self.run.predictions("val"), logits).target_prior


def load_run(run_dir: str | os.PathLike[str]) -> Run:
    """Load a run from its directory.

    Raises:
        FileNotFoundError: If it is not a run directory.
        ValueError: If one of its files is damaged.
    """
    directory = Path(run_dir)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no run directory {directory}.")
    config = read_config(directory)
    if not (directory / FACTS).is_file():
        raise FileNotFoundError(
            f"{directory} was cut off before training began: it has no {FACTS}. "
            f"Resume with `{resume_command(directory)}`."
        )
    return Run(directory, config, read_facts(directory / FACTS, config))


def as_run(run: Run | str | os.PathLike[str]) -> Run:
    """Return a run; load it if its directory is given."""
    return run if isinstance(run, Run) else load_run(run)
