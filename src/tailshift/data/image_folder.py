"""A folder of images: ``root/class/*.jpg`` or ``root/{train,val,test}/class/*``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from tailshift.data.dataset import DATASETS
from tailshift.data.decoding import ImageFiles
from tailshift.data.file_split import FileSplit
from tailshift.data.own_images import SPLIT_NAMES, Found, OwnImages

EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"),
    *(".gif", ".ppm", ".pgm"),
)


@dataclass(frozen=True)
class ImageFolder(OwnImages):
    """Each class a folder, named like the class; a level above, the splits if any."""

    sentence: ClassVar[str] = (
        "Your own images: PATH/class/*.jpg or PATH/{train,val,test}/class/*.jpg."
    )
    name: ClassVar[str] = "folder"
    form: ClassVar[str] = "a folder with one folder of images for each class"

    def read(self, path: Path) -> Found:
        """Return the splits that have a folder, or one of all images."""
        if not path.is_dir():
            raise FileNotFoundError(f"there is no folder `{path}`.")
        folders = split_folders(path)
        class_names = tuple(child.name for child in subfolders(folders["train"]))
        if not class_names:
            raise ValueError(
                f"`{folders['train']}` must hold one folder of images for each class, "
                "but holds no folder."
            )
        splits = {
            name: read_classes(path, folder, class_names, may_lack=name != "train")
            for name, folder in folders.items()
        }
        return Found(splits, class_names)


def split_folders(path: Path) -> dict[str, Path]:
    """Return the folder of each split; all is ``train`` where there are no splits.

    A folder ``train`` that itself holds no folder is a class of that name.
    """
    if not subfolders(path / "train"):
        return {"train": path}
    found: dict[str, Path] = {}
    for folder in subfolders(path):
        name = SPLIT_NAMES.get(folder.name)
        if name is None:
            raise ValueError(
                f"`{folder}` must be a split (train, val or test), because `{path}` "
                "has a split train. Move it, or take the splits away."
            )
        if name in found:
            raise ValueError(
                f"`{path}` must have one folder for {name}, but has {found[name].name} "
                f"and {folder.name}."
            )
        found[name] = folder
    return found


def subfolders(path: Path) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones."""
    if not path.is_dir():
        return []
    return sorted(
        child
        for child in path.iterdir()
        if child.is_dir() and not child.name.startswith(".")
    )


def read_classes(
    root: Path, folder: Path, class_names: Sequence[str], *, may_lack: bool
) -> FileSplit:
    """Return the images of all classes; paths are from `root`."""
    index = {name: c for c, name in enumerate(class_names)}
    paths, labels = list[str](), list[int]()
    for class_folder in subfolders(folder):
        if class_folder.name not in index:
            raise ValueError(
                f"`{class_folder}` must be a class of the training split, but that has "
                f"no folder {class_folder.name}."
            )
        files = image_files(class_folder)
        if not files and not may_lack:
            raise ValueError(
                f"`{class_folder}` must hold images ({', '.join(EXTENSIONS[:3])} …), "
                "but holds none. Add some, or remove the folder."
            )
        paths += [file.relative_to(root).as_posix() for file in files]
        labels += [index[class_folder.name]] * len(files)
    return FileSplit(ImageFiles(root, tuple(paths)), torch.tensor(labels).long())


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and below, by path, without hidden ones."""
    return sorted(
        Path(place) / name
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
    )


DATASETS.add("folder", ImageFolder)
