"""Which network for one's own images: a head on ImageNet features, or all of one."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from tailshift import priors
from tailshift.config import ModelConfig, RunConfig
from tailshift.data import FeatureSplit, LongTailedData, Split
from tailshift.data.features import as_toml
from tailshift.data.image_split import FileSplit
from tailshift.data.own_images import OwnImages, hold_out
from tailshift.losses import CrossEntropyLoss
from tailshift.methods import Method
from tailshift.models import MOST_SMALL, LinearHead
from tailshift.models.pretrained import (
    INSTALL,
    PUBLISHED,
    seen_size,
    weights_at_hand,
)
from tailshift.recipes import feature_settings
from tailshift.training.extraction import prepared
from tailshift.training.head_problem import HeadProblem, Samples
from tailshift.training.progress import print_line
from tailshift.training.resolve import banked
from tailshift.training.weight_decay import (
    JUDGED_SHARE,
    LabelledLosses,
    tried_losses,
)

MOST_JUDGED = 4000
"""Training images that features are judged by."""

PATCH, NUM_FILTERS, NUM_PATCHES = 6, 256, 20_000
"""Height and width of a patch, filters, and patches that these are chosen from."""

CERTAIN = 2.0
"""Standard errors by which patches must be better."""

JUDGED_SIZE = 32
"""Height and width that images have where their patches are looked at."""


JUDGING = (
    "small images: ImageNet features, or a network of their own, whichever is better "
    "on training images that are held out"
)


def own_network(
    config: RunConfig, *, finetune: bool = False, is_verbose: bool = False
) -> tuple[list[str], str]:
    """Return the settings of the best network at hand for one's own images, and why.

    A head on features of ImageNet weights, if there are any. Small images need not be
    photos, and what ImageNet teaches may be of no use for writing or signs. So a linear
    classifier is fitted to these features and another to :func:`patch_features`, which
    stand in for a network trained from scratch: if that one is better on training
    images that are held out, by more than chance, a small network is trained instead.

    Args:
        config: Data and method of the run.
        finetune: Whether to train all of the network, not the head alone.
        is_verbose: Whether to tell how far the features are.
    """
    if type(config.method).branch is not Method.branch:
        return [], f"all of it is trained, since {config.method_name} has branches"
    network = weights_at_hand()
    if not network:
        return [], (
            f"one for the images' size; `{INSTALL}` would instead train a head on "
            "ImageNet features, in minutes"
        )
    data = config.data.load(root=None, seed=config.seed)
    shown = f"{network['name']} with ImageNet weights"
    if finetune:
        network |= {"pretrained": "weights" not in network}
        settings = [f"model.{key}={as_toml(value)}" for key, value in network.items()]
        size = f"data.image_size={seen_size(str(network['name']), data.image_size)}"
        return [*settings, size], f"{shown}, all of it is trained"
    settings = feature_settings(str(network.get("weights", network["name"])))
    sentence = f"{shown}, the head alone (--finetune trains all of it)"
    if data.image_size > MOST_SMALL:
        return settings, sentence
    if is_verbose:
        print_line(Console(stderr=True), JUDGING)
    model = ModelConfig.model_validate({**network, "frozen": True})
    judged = judge(data, model, is_verbose=is_verbose)
    if judged.gain <= CERTAIN * judged.error:
        return settings, sentence
    return [], (
        "one for small images, all of it is trained: on held-out training images a "
        f"classifier of patches does better (loss {judged.patches:.2f}) than one of "
        f"ImageNet features ({judged.features:.2f}); --features lite0 takes these"
    )


def what_features_see(dataset: OwnImages) -> list[str]:
    """Return a line on what ImageNet features would see of images, if at hand.

    Args:
        dataset: Images of one's own, as ``tailshift data check`` finds them.
    """
    if all(published.path is None for published in PUBLISHED.values()):
        return []  # nothing is fetched for a look
    data = dataset.load()
    model = ModelConfig.model_validate({**weights_at_hand(), "frozen": True})
    split = prepared(data, model.for_images(data.image_size)).train
    assert isinstance(split, FileSplit)
    seen = f"ImageNet features, the default of train, see: {split.preparation}"
    if data.image_size > MOST_SMALL:
        return [seen]
    return [f"{seen}; of small images only if they are better on some held out"]


class Judged(NamedTuple):
    """Losses of linear classifiers on held-out images, classes alike, in nats."""

    features: float
    patches: float
    error: float
    """Standard error of their difference."""

    @property
    def gain(self) -> float:
        """How much lower the loss of the patches is."""
        return self.features - self.patches


def judge(
    data: LongTailedData, model: ModelConfig, *, is_verbose: bool = False
) -> Judged:
    """Return how well a frozen network's features and patches tell classes apart.

    Args:
        data: The images; those for training alone are looked at.
        model: The network, which is frozen.
        is_verbose: Whether to tell how far the features are.
    """
    features = banked(data, model, is_verbose=is_verbose).train
    assert isinstance(features, FeatureSplit)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    some = features.subset(order[:MOST_JUDGED].sort().values)
    images, labels = some_images(data.train)
    patches = FeatureSplit(patch_features(images)[None], labels)
    return compared(*(held_out_losses(s, data.num_classes) for s in (some, patches)))


def compared(features: LabelledLosses, patches: LabelledLosses) -> Judged:
    """Return the mean losses, and the standard error of their difference.

    It is that of pairs if both are of the same images, which they are unless some
    cannot be read.
    """
    x, y = features.losses, patches.losses
    if torch.equal(features.labels, patches.labels):
        error = features.error_of(x - y)
    else:
        error = math.hypot(features.error_of(x), patches.error_of(y))
    return Judged(features.mean_of(x), patches.mean_of(y), error)


def some_images(split: Split) -> tuple[Tensor, Tensor]:
    """Return training images as the test sees them, (N, c, 32, 32), and labels (N,)."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    chosen = split.subset(order[:MOST_JUDGED].sort().values)
    loader = chosen.loader(batch_size=256, training=False, num_workers=0)
    batches = list(loader.epoch(0))  # without images that are broken and skipped
    images = torch.cat([batch.images for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    return F.adaptive_avg_pool2d(images, JUDGED_SIZE), labels


def patch_features(images: Tensor) -> Tensor:
    r"""Return what whitened patches find in images, shape (N, 8 · filters).

    .. math:: \max(0, \pm d_k^	op W ar x - 1)

    for every patch x of an image, normalised and whitened by W, and every filter
    :math:`d_k`, a patch of some image itself; averaged over the image's quarters
    [coates2011]. Untrained as it is, a linear classifier of it comes near a small
    convolutional network.

    Args:
        images: Shape (N, c, H, W).
    """
    generator = torch.Generator().manual_seed(0)
    patches = _some_patches(images, generator)  # (P, d)
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    whiten = vectors / (values + 0.1).sqrt() @ vectors.T  # (d, d)
    chosen = torch.randperm(len(patches), generator=generator)[:NUM_FILTERS]
    filters = F.normalize((patches[chosen] - mean) @ whiten)  # (K, d)
    parts = []
    for part in torch.split(images, 64):
        columns = F.unfold(part, PATCH)  # (n, d, places)
        x = _normalised(columns.transpose(1, 2)) - mean
        found = (x @ (whiten @ filters.T)).transpose(1, 2)  # (n, K, places)
        both = torch.cat([(found - 1).relu(), (-found - 1).relu()], dim=1)
        side = part.shape[-1] - PATCH + 1
        parts.append(
            F.adaptive_avg_pool2d(both.reshape(*both.shape[:2], side, side), 2)
        )
    return torch.cat(parts).flatten(1)


def _some_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return patches of images at random places, normalised, shape (P, d)."""
    most = images.shape[-1] - PATCH + 1
    rows = torch.randint(len(images), (NUM_PATCHES,), generator=generator)
    corners = torch.randint(most, (NUM_PATCHES, 2), generator=generator)
    patches = [
        images[i, :, y : y + PATCH, x : x + PATCH].flatten()
        for i, (y, x) in zip(rows.tolist(), corners.tolist(), strict=True)
    ]
    return _normalised(torch.stack(patches))


def _normalised(patches: Tensor) -> Tensor:
    """Return patches (…, d) of mean 0 and about deviation 1; flat ones stay small."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 0.04).sqrt()


def held_out_losses(split: FeatureSplit, num_classes: int) -> LabelledLosses:
    """Return a linear classifier's losses on a fifth of each class, held out.

    It answers for the uniform prior; the weight decay is the best of those tried.

    Args:
        split: Features and labels.
        num_classes: Number of classes C.
    """
    keys = [str(row) for row in range(len(split))]
    held = hold_out(keys, split.labels, {"val": JUDGED_SHARE})
    train, val = (torch.from_numpy(held[part]) for part in ("train", "val"))
    head = LinearHead(split.features.shape[2], num_classes)
    problem = HeadProblem(head, CrossEntropyLoss(), Samples(split, train, num_classes))
    counts = torch.bincount(split.labels[train], minlength=num_classes)
    log_prior = priors.from_counts(counts.clamp_min(1)).log().float()
    return min(
        tried_losses(problem, val, log_prior).values(), key=lambda found: found.mean
    )
