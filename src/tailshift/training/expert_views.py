"""The experts of a trained SADE, fitted to a target by its images alone."""

import copy

import torch
from torch import Tensor

from tailshift.data import Split
from tailshift.methods.sade import learn_expert_shares
from tailshift.models import Classifier, ExpertHead


def adapt_experts(
    model: Classifier,
    split: Split,
    *,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 0.1,
    seed: int = 0,
    num_workers: int | None = None,
) -> Classifier:
    r"""Return a copy of the model whose experts count as suits the images of a split.

    The shares are those of
    :func:`~tailshift.methods.sade.learn_expert_shares`, from two augmented
    views of each image; labels are not read. They stand in ``head.shares`` of the copy.

    The copy's logits carry the product of the experts' priors to the powers of the
    shares, ``aggregate_prior(sade_priors(p_s, tau=tau), model.head.shares)``, and not
    the prior that the run states, which is of its own model with equal shares.

    Args:
        model: With an expert head, such as the ``model`` of a run of SADE.
        split: The target's images.
        epochs: Times that the images are gone through.
        batch_size: Images a step.
        lr: Learning rate.
        seed: Of augmentation and order.
        num_workers: Processes that decode images, where they are read from files.

    Example:
        >>> from tailshift.data import DigitsLT
        >>> from tailshift.models import BranchedBackbone, DigitsNet
        >>> backbone = BranchedBackbone(DigitsNet(), 3)
        >>> model = Classifier(backbone, ExpertHead(backbone.feature_dim, 10))
        >>> adapted = adapt_experts(model, DigitsLT().load(root=None, seed=0).test)
        >>> round(adapted.head.shares.sum().item(), 6)
        1.0
    """
    views = expert_views(model, split, seed=seed, num_workers=num_workers)
    if torch.equal(*views):
        raise ValueError(
            "`split` must be augmented when it is loaded for training, but two views "
            "of its images are the same. Give it the training split's augmentation."
        )
    adapted = copy.deepcopy(model).eval()
    shares = learn_expert_shares(
        *views, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed
    )
    _expert_head(adapted).shares.copy_(shares)
    return adapted


@torch.no_grad()
def expert_views(
    model: Classifier,
    split: Split,
    *,
    batch_size: int = 512,
    seed: int = 0,
    num_workers: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the experts' logits of two augmented views, (3, N, C) each, float32.

    Row i of both is the i-th image of the split, less those that could not be read.

    Args:
        model: With an expert head; it is left in evaluation mode, where it is.
        split: Whose images.
        batch_size: Images at a time.
        seed: Of the augmentation.
        num_workers: Processes that decode images, where they are read from files.
    """
    head, device = _expert_head(model.eval()), next(model.parameters()).device
    loader = split.loader(
        batch_size=batch_size, training=True, seed=seed, num_workers=num_workers
    )

    def view(epoch: int) -> Tensor:
        logits, ids = [], []
        for batch in loader.epoch(epoch):  # augmented, hence in another order
            features = model.backbone(batch.images.to(device))
            logits.append(head.experts(features).float().cpu())
            ids.append(batch.sample_ids)
        return torch.cat(logits, dim=1)[:, torch.cat(ids).argsort()]

    return view(0), view(1)


def _expert_head(model: Classifier) -> ExpertHead:
    if not isinstance(model.head, ExpertHead):
        raise TypeError(
            f"`model` must have an ExpertHead, as SADE trains it, but has a "
            f"{type(model.head).__name__}."
        )
    return model.head
