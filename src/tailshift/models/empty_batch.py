"""Batches without an image, as one of several processes may have at an epoch's end."""

from torch import Tensor, nn

NUM_STAND_INS = 2
"""Blank images that are read for none; BBN's two branches read one each."""


def of_any_batch(module: nn.Module, images: Tensor) -> Tensor:
    """Return what a module gives for images, (N, …), where N may be 0.

    Few modules take no image at all. Where N is 0 blank ones are read, and their rows
    left out: the result has no rows, and all parameters have the gradient 0.

    Args:
        module: Takes images (N, c, H, W).
        images: Shape (N, c, H, W).

    Example:
        >>> import torch
        >>> module = nn.Conv2d(3, 8, 3)
        >>> of_any_batch(module, torch.zeros(0, 3, 4, 4)).shape
        torch.Size([0, 8, 2, 2])
    """
    if len(images):
        given: Tensor = module(images)
        return given
    stand_ins = images.new_zeros(NUM_STAND_INS, *images.shape[1:])
    none: Tensor = module(stand_ins)[:0]
    return none
