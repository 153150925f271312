"""Cross-fitting: held-out logits of all images for a head trained on all of them."""

import dataclasses
import hashlib

import torch
from torch import Tensor

from tailshift.config import RunConfig
from tailshift.data import FeatureSplit, LongTailedData
from tailshift.losses import Loss, as_loss
from tailshift.models import Head
from tailshift.runs.network import stage_head
from tailshift.training.build import build_loss
from tailshift.training.head_fit import FITTED_AT_ONCE, FULL_STEPS, HeadFit
from tailshift.training.head_problem import HeadProblem, Samples
from tailshift.training.loop import Trainer

MAX_MERGED_BYTES = 2**31
"""Features of this size at most are copied to join validation and training images."""


def with_validation_in_training(
    config: RunConfig, data: LongTailedData
) -> LongTailedData:
    """Move the validation images into training, if cross-fitting replaces them.

    Use it before the trainer is built: the head is then fitted to all images, and
    :func:`out_of_fold` gives the held-out logits.

    Args:
        config: Configuration of the run, whose head is fitted by L-BFGS.
        data: Features; the data are returned unchanged if they cannot be joined.
    """
    train, val = data.train, data.val
    if not (isinstance(train, FeatureSplit) and isinstance(val, FeatureSplit)):
        return data
    if not may_cross_fit(config) or not len(val) or not _is_smooth(config):
        return data
    num_bytes = 4 * len(train.features) * (len(train) + len(val))
    if num_bytes * train.features.shape[2] > MAX_MERGED_BYTES:
        return data
    joined = _joined(train, val)
    return dataclasses.replace(
        data, train=joined, val=None, fingerprint=joined.fingerprint(), full_counts=None
    )


def may_cross_fit(config: RunConfig) -> bool:
    """Return whether a configuration asks for cross-fitting and allows it.

    A choice among epochs, a setting that the method chooses on validation images, and
    a stage that another run gave need images that no stage has trained on.
    """
    train, method = config.train, config.method
    chooses = train.keep != "last" or train.patience is not None
    is_plain = config.optim.name == "lbfgs" and config.model.adapter == "none"
    is_single = len(method.stages()) == 1 and not method.needs_validation
    return (
        train.cross_fit > 0
        and is_plain
        and is_single
        and not chooses
        and not train.start_from
    )


def _is_smooth(config: RunConfig) -> bool:
    """Return whether the head and its loss can be fitted at once, by any features."""
    stage = config.method.stages()[0]
    loss = build_loss(config, torch.ones(2), stage)
    is_fixed = type(as_loss(loss)).begin_epoch is Loss.begin_epoch
    head = type(stage_head(config, 0, 2, 2))
    return (
        is_fixed and head in FITTED_AT_ONCE and config.samplers(stage) == ("instance",)
    )


def is_cross_fitted(config: RunConfig, data: LongTailedData, trainer: Trainer) -> bool:
    """Return whether held-out logits of a run come from :func:`out_of_fold`."""
    is_whole = isinstance(trainer, HeadFit) and data.val is None
    return is_whole and may_cross_fit(config)


def _joined(train: FeatureSplit, val: FeatureSplit) -> FeatureSplit:
    """Return both splits as one; a validation image has the same features in all views.

    Views differ by augmentation, which validation images have none of.
    """
    views = len(train.features)
    parts = [
        torch.stack([split.take(torch.arange(len(split)), view) for view in chosen])
        for split, chosen in ((train, range(views)), (val, [0] * views))
    ]
    labels = torch.cat([train.labels, val.labels])
    return dataclasses.replace(
        train, features=torch.cat(parts, dim=1), labels=labels, rows=None
    )


def fold_numbers(labels: Tensor, num_folds: int) -> Tensor:
    """Assign each sample to a fold, stratified by class; -1 is in no fold.

    The only sample of a class stays in training in all folds, since a head cannot
    learn a class that it never sees.

    Args:
        labels: Class indices, shape (N,).
        num_folds: Number of folds.

    Example:
        >>> folds = fold_numbers(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 2)
        >>> folds[:4].bincount().tolist(), int(folds[6])
        ([2, 2], -1)
    """
    digests = [hashlib.sha256(str(i).encode()).digest() for i in range(len(labels))]
    classes: dict[int, list[int]] = {}
    for i in sorted(range(len(labels)), key=digests.__getitem__):
        classes.setdefault(int(labels[i]), []).append(i)
    assigned = [i for _, ids in sorted(classes.items()) if len(ids) > 1 for i in ids]
    folds = torch.full((len(labels),), -1)
    # Classes follow each other in one sequence, so all folds have the same size.
    folds[torch.tensor(assigned).long()] = torch.arange(len(assigned)) % num_folds
    return folds


def out_of_fold(
    config: RunConfig, data: LongTailedData, decay: float
) -> tuple[Tensor, Tensor]:
    """Return logits of training images from heads that did not train on them.

    Use them as held-out data for calibration, certificates and the measured logit
    prior. Each head is fitted to the other folds; its logits are re-targeted from the
    prior of these folds to the prior of all images.

    Args:
        config: Configuration of the run.
        data: Features of the training images.
        decay: Weight decay of the head.

    Returns:
        Log posteriors (M, C) and labels (M,), in the order of the images. Classes with
        a single image are left out.
    """
    split = data.train
    assert isinstance(split, FeatureSplit)
    folds = fold_numbers(split.labels, config.train.cross_fit)
    logits = torch.zeros(len(split), data.num_classes)
    for fold in range(config.train.cross_fit):
        held, rest = ((folds == fold).nonzero()[:, 0], (folds != fold).nonzero()[:, 0])
        if len(held):
            logits[held] = _fold_logits(config, data, split, rest, held, decay)
    kept = folds >= 0
    return logits[kept], split.labels[kept]


def _fold_logits(
    config: RunConfig,
    data: LongTailedData,
    split: FeatureSplit,
    rest: Tensor,
    held: Tensor,
    decay: float,
) -> Tensor:
    """Return log posteriors of held-out samples under the prior of all samples."""
    counts = torch.bincount(split.labels[rest], minlength=data.num_classes)
    stage = config.method.stages()[0]
    loss = build_loss(config, counts, stage)
    samples = Samples(split, rest, data.num_classes)
    problem = HeadProblem(_new_head(config, split, data.num_classes), loss, samples)
    problem.solve(decay, FULL_STEPS)
    with torch.no_grad():
        parts = [
            problem.head(problem.scaled(split.take(ids)))
            for ids in torch.split(held, samples.chunk_size)
        ]
    f = config.method.log_posteriors(torch.cat(parts))
    # The prior of a fold differs from the prior of all samples where classes are rare.
    ratio = config.logit_prior(data.class_counts) / config.logit_prior(counts)
    return f + ratio.log().float()


def _new_head(config: RunConfig, split: FeatureSplit, num_classes: int) -> Head:
    """Return an untrained head that does not depend on what was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return stage_head(config, 0, split.features.shape[2], num_classes)
