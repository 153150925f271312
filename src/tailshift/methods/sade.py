"""SADE: three experts for three class distributions; their shares learnt at test."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import SADELoss, sade_priors
from tailshift.methods.experts import ExpertMethod, LossOnExpertHead
from tailshift.methods.experts import aggregate_prior as aggregate_prior
from tailshift.methods.method import METHODS
from tailshift.models import MOST_SMALL, Classifier, ExpertHead

_MIN_SHARE = 0.05
"""Learning ends with the epoch after which an expert counts less than this."""


def learn_expert_shares(
    first_view: Tensor,
    second_view: Tensor,
    *,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 0.1,
    seed: int = 0,
) -> Tensor:
    r"""Return the experts' shares under which two views of the images agree most.

    .. math:: \max_a \frac{1}{N} \sum_i \cos \Bigl(
        \mathrm{softmax} \sum_k a_k v_k(x_i),\;
        \mathrm{softmax} \sum_k a_k v_k(x'_i) \Bigr)

    [zhang2022]: x and x′ are the same image augmented twice. An expert is steadiest on
    the classes that it was trained for, so on a target rich in them it gains; no label
    is read. That is a heuristic: nothing ties agreement to accuracy.

    Softmax keeps the shares a distribution. They are found by SGD with Nesterov's
    momentum 0.9 from equal ones, as in the authors' code, which also ends once a share
    is below 0.05.

    Aggregated logits carry :func:`aggregate_prior`, no longer the prior of the mean:
    compensate them from that one.

    Args:
        first_view: :math:`v(x)`, each expert's logits, shape (K, N, C).
        second_view: :math:`v(x')`, of the same images in the same order.
        epochs: Number of passes over the images; a few hundred steps in all move
            the shares, so a small target needs more than 5.
        batch_size: Images per step.
        lr: Learning rate.
        seed: Seed for the order of the images.

    Returns:
        :math:`a`, float64, sums to 1, shape (K,).

    Example:
        >>> steady, shaky = torch.zeros(1, 64, 4), torch.zeros(1, 64, 4)
        >>> steady[..., 0], shaky[..., 1] = 3.0, 3.0
        >>> views = (torch.cat([steady, x, x]) for x in (shaky, shaky.flip(2)))
        >>> learn_expert_shares(*views, epochs=20).argmax()
        tensor(0)
    """
    _check_views(first_view, second_view)
    views = torch.stack([first_view, second_view]).detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    num_images = views.shape[2]

    def batches() -> Iterator[Tensor]:
        order = torch.randperm(num_images, generator=generator)
        return (views[:, :, rows] for rows in torch.split(order, batch_size))

    return _learn((batches() for _ in range(epochs)), len(first_view), lr)


def _learn(passes: Iterable[Iterable[Tensor]], num_experts: int, lr: float) -> Tensor:
    """Return the shares after some passes over batches of views, (2, K, n, C) each."""
    scores = torch.zeros(num_experts, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([scores], lr=lr, momentum=0.9, nesterov=True)
    for batches in passes:
        for views in batches:
            optimizer.zero_grad()
            (-agreement(views, scores.softmax(0))).backward()  # type: ignore[no-untyped-call] # torch's
            optimizer.step()
        if scores.softmax(0).min() < _MIN_SHARE:
            break
    return scores.detach().softmax(0)


def learn_shares_from_images(
    model: Classifier,
    images: Tensor,
    normalise: Callable[[Tensor], Tensor],
    *,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 0.1,
    seed: int = 0,
) -> Tensor:
    """Return the experts' shares for images without labels, float64, shape (K,).

    As :func:`learn_expert_shares`, but each batch of each pass has two new views of its
    images (:func:`random_view`).

    Args:
        model: With an :class:`~tailshift.models.ExpertHead`, in evaluation mode.
        images: Pixels of the target, uint8, shape (N, c, H, W).
        normalise: Maps pixels to what the model takes.
        epochs: Number of passes over the images.
        batch_size: Images per step.
        lr: Learning rate.
        seed: Seed for the order of the images and their views.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or not len(images):
        raise ValueError(
            "`images` must be uint8 of shape (N, channels, H, W) and not be empty, but "
            f"is {images.dtype} of shape {tuple(images.shape)}."
        )
    head, device = model.head, next(model.parameters()).device
    assert isinstance(head, ExpertHead)
    draw = random_view(images.shape[2])

    @torch.no_grad()
    def logits(rows: Tensor) -> Tensor:
        view = torch.stack([draw(image) for image in images[rows]])
        return head.experts(model.backbone(normalise(view).to(device))).double().cpu()

    def batches() -> Iterator[Tensor]:
        for rows in torch.split(torch.randperm(len(images)), batch_size):
            yield torch.stack([logits(rows), logits(rows)])

    with torch.random.fork_rng([]):  # what transforms draw from
        torch.manual_seed(seed)
        return _learn((batches() for _ in range(epochs)), len(head.heads), lr)


def random_view(image_size: int) -> Callable[[Tensor], Tensor]:
    """Return what makes a random view of an image, uint8 of shape (c, H, W).

    The authors' views of CIFAR: a crop from an image with zeros around it, an eighth
    wide on each side, changed colours (p .8), grey (p .2), blurred (p .2), mirrored
    (p .5). Images above 64 pixels are cropped to a random share of their area.

    Args:
        image_size: Height and width.
    """
    from torchvision.transforms import v2  # slow to import: only when needed

    is_small = image_size <= MOST_SMALL
    crop = (
        v2.RandomCrop(image_size, padding=image_size // 8)
        if is_small
        else v2.RandomResizedCrop(image_size)
    )
    kernel = min(13, image_size - 1 + image_size % 2)  # odd; 13 pixels are 3σ each way
    view: Callable[[Tensor], Tensor] = v2.Compose(
        [
            crop,
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(kernel, sigma=(0.1, 2.0))], p=0.2),
            v2.RandomHorizontalFlip(),
        ]
    )
    return view


def agreement(views: Tensor, shares: Tensor) -> Tensor:
    """Return the mean cosine of two views' probabilities, a scalar in [0, 1].

    Args:
        views: Each expert's logits of both, shape (2, K, N, C).
        shares: How much each expert counts, shape (K,).
    """
    probs = torch.einsum("k,vknc->vnc", shares, views).softmax(-1)
    return F.cosine_similarity(probs[0], probs[1]).mean()


def _check_views(first_view: Tensor, second_view: Tensor) -> None:
    if first_view.ndim != 3 or first_view.numel() == 0:
        raise ValueError(
            "`first_view` must have shape (K, N, C) and not be empty, but has shape "
            f"{tuple(first_view.shape)}."
        )
    if second_view.shape != first_view.shape:
        raise ValueError(
            f"`second_view` must have the shape of `first_view`, "
            f"{tuple(first_view.shape)}, but has shape {tuple(second_view.shape)}."
        )


class SADEOfExperts(LossOnExpertHead, SADELoss):
    """SADE's loss of an expert head's output."""


@METHODS.register("sade")
@dataclass(frozen=True)
class SADE(ExpertMethod):
    """Self-supervised aggregation of diverse experts [zhang2022].

    Training leaves the experts counting alike. For a target without labels
    :meth:`Run.adapt_experts <tailshift.Run.adapt_experts>` learns how much each should.
    """

    title = "SADE"
    sentence = (
        "Three experts, trained for the source, the uniform and an inverse prior; the "
        "mean carries their geometric mean exactly, which is not uniform."
    )
    citation = "zhang2022"
    prior = "∝ (p_s · inverse^tau)^(1/3)"
    cost = 1.6

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """τ, how far the third expert leans towards rare classes."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """s, the largest logit."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the experts' losses for the prior of the counts."""
        return SADEOfExperts(priors.from_counts(class_counts), tau=self.tau)

    def expert_priors(self, source_prior: Tensor) -> Tensor:
        """Return the prior that each expert's logits carry, shape (3, C)."""
        return sade_priors(source_prior, tau=self.tau)
