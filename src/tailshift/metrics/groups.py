"""Many-, medium- and few-shot classes: groups by number of training images."""

from torch import Tensor

from tailshift.predictions import check_counts
from tailshift.priors import VectorLike


def class_groups(
    class_counts: VectorLike, *, many: int = 100, few: int = 20
) -> dict[str, Tensor]:
    """Return the class ids of the groups ``"many"``, ``"medium"`` and ``"few"``.

    Args:
        class_counts: :math:`n_y`, training images of each class, shape (C,).
        many: A class with more images than this has many.
        few: A class with fewer images than this has few.

    Example:
        >>> class_groups([500, 100, 20, 19])
        {'many': tensor([0]), 'medium': tensor([1, 2]), 'few': tensor([3])}
    """
    if many < few:
        raise ValueError(f"`many` must be at least `few`, but is {many} against {few}.")
    n = check_counts(class_counts)  # (C,)
    is_many, is_few = n > many, n < few
    members = {"many": is_many, "medium": ~is_many & ~is_few, "few": is_few}
    return {name: member.nonzero().flatten() for name, member in members.items()}
