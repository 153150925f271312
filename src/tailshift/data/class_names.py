"""Class names taken from the folders that images lie in."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from torch import Tensor


def folder_names(
    paths: Sequence[str], labels: Tensor, num_classes: int
) -> tuple[str, ...]:
    """Return the folder of each class's images, or ``class c`` where it has not one.

    As many of the last folders are named as it takes to tell all classes apart.

    Example:
        >>> from torch import tensor
        >>> paths = ["train/bar/1.jpg", "train/cafe/2.jpg", "train/cafe/3.jpg"]
        >>> folder_names(paths, tensor([0, 1, 1]), num_classes=2)
        ('bar', 'cafe')
        >>> folder_names(["a/shop/1.jpg", "b/shop/2.jpg"], tensor([0, 1]), 2)
        ('a/shop', 'b/shop')
        >>> folder_names(["all/1.jpg", "all/2.jpg"], tensor([0, 1]), 2)
        ('class 0', 'class 1')
    """
    folders: list[set[str]] = [set() for _ in range(num_classes)]
    for path, label in zip(paths, labels.tolist(), strict=True):
        folders[label].add(path.rpartition("/")[0])
    numbers = tuple(f"class {c}" for c in range(num_classes))
    if any(len(of_class) != 1 or "" in of_class for of_class in folders):
        return numbers
    parts = [PurePosixPath(*of_class).parts for of_class in folders]
    for depth in range(1, max(len(folder) for folder in parts) + 1):
        names = tuple("/".join(folder[-depth:]) for folder in parts)
        if len(set(names)) == num_classes:
            return names
    return numbers
