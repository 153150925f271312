"""Images of your own in a folder of classes, a CSV or a list file."""

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from tailshift.data.dataset import DATASETS
from tailshift.data.image_split import FileSplit
from tailshift.data.images import ImageFiles
from tailshift.data.list_files import (
    MOST_LIST,
    check_every_class,
    checked_path,
    folder_names,
    note_path,
    read_list,
    shown,
)
from tailshift.data.own_images import SPLIT_NAMES, Found, OwnImages, number_labels
from tailshift.files import read_text
from tailshift.text import cut


@DATASETS.register("csv")
@dataclass(frozen=True)
class ImageCSV(OwnImages):
    """A row per image; labels are names or integers, other columns are ignored."""

    sentence: ClassVar[str] = (
        "Your own images: a CSV with the columns path,label[,split]."
    )
    form: ClassVar[str] = "a CSV with the columns path and label"

    image_root: str = ""
    """Folder that the paths start from; empty is the CSV's own."""

    def read(self, path: Path) -> Found:
        """Return the splits that the column `split` names, or one of all rows."""
        rows = read_rows(path)
        root = Path(self.image_root).expanduser() if self.image_root else path.parent
        labels, class_names = number_labels([row.label for row in rows])
        files = ImageFiles(root, tuple(row.path for row in rows))
        whole = FileSplit(files, labels)
        splits = {
            split: whole.subset(torch.tensor([row.split == split for row in rows]))
            for split in ("train", "val", "test")
            if any(row.split == split for row in rows)
        }
        if "train" not in splits:
            raise ValueError(f"`{path}` must have rows of split train, but has none.")
        return Found(splits, class_names)


DELIMITERS = ",;\t"
"""Between the fields of a CSV; spreadsheets of many countries write a semicolon."""


class Row(NamedTuple):
    """One image of a CSV."""

    path: str
    label: str
    split: str


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a CSV, checked."""
    try:
        return _read_rows(file)
    except csv.Error as error:
        raise ValueError(f"`{file}` must be a CSV, but is not one ({error}).") from None


def _read_rows(file: Path) -> list[Row]:
    text = read_text(file, MOST_LIST)
    heading = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=heading.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    columns = [column.strip() for column in reader.fieldnames or []]
    if not {"path", "label"} <= set(columns):
        raise ValueError(
            f"`{file}` must have the columns path and label, but has "
            f"{shown(', '.join(columns)) or 'none'}."
        )
    reader.fieldnames = columns
    rows, first_seen = [], dict[str, int]()
    for values in reader:
        row = _checked_row(values, f"`{file}` line {reader.line_num}")
        note_path(row.path, reader.line_num, first_seen, file)
        rows.append(row)
    if not rows:
        raise ValueError(f"`{file}` must list images, one a row, but is empty.")
    return rows


def _checked_row(values: dict[str | None, str | None], where: str) -> Row:
    if None in values or None in values.values():
        raise ValueError(
            f"{where} must have as many fields as the heading, but has "
            f"{'more' if None in values else 'fewer'}. Put quotes around a field that "
            "holds the character between fields."
        )
    fields = {column: (values.get(column) or "").strip() for column in Row._fields}
    for column in ("path", "label"):
        if not fields[column]:
            raise ValueError(f"{where} must have a {column}, but it is empty.")
    split = fields["split"].lower() if "split" in values else "train"
    if split not in SPLIT_NAMES:
        raise ValueError(
            f"{where} must have the split train, val or test, but has "
            f"{cut(fields['split'])!r}."
        )
    path = checked_path(fields["path"], where)
    return Row(path, fields["label"], SPLIT_NAMES[split])


EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"),
    *(".gif", ".ppm", ".pgm"),
)


@DATASETS.register("folder")
@dataclass(frozen=True)
class ImageFolder(OwnImages):
    """Each class a folder, named like the class; a level above, the splits if any."""

    sentence: ClassVar[str] = (
        "Your own images: PATH/class/*.jpg or PATH/{train,val,test}/class/*.jpg."
    )
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
    """Return the folder of each split; all is ``train`` if there are no splits.

    A folder ``train`` (or ``Train``, ``training``) that itself holds no folder is a
    class of that name.
    """
    names = {
        folder: SPLIT_NAMES.get(folder.name.lower()) for folder in subfolders(path)
    }
    if not any(name == "train" and subfolders(f) for f, name in names.items()):
        return {"train": path}
    found: dict[str, Path] = {}
    for folder, name in names.items():
        if name is None:
            raise ValueError(
                f"`{folder}` must be a split (train, val or test), because `{path}` "
                "has a split train. Move it, or remove the splits."
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
    paths, labels, unread = list[str](), list[int](), Counter[str]()
    for class_folder in subfolders(folder):
        if class_folder.name not in index:
            raise ValueError(
                f"`{class_folder}` must be a class of the training split, but that has "
                f"no folder {class_folder.name}."
            )
        files, others = list_files(class_folder)
        unread += others
        if not files and not may_lack:
            there = f" but {_counted(others)}, which are not read" if others else ""
            raise ValueError(
                f"`{class_folder}` must hold images ({', '.join(EXTENSIONS[:3])} …), "
                f"but holds none{there}. Add some, or remove the folder."
            )
        paths += [file.relative_to(root).as_posix() for file in files]
        labels += [index[class_folder.name]] * len(files)
    _warn_of_unread(folder, unread)
    return FileSplit(ImageFiles(root, tuple(paths)), torch.tensor(labels).long())


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and below, by path, without hidden ones."""
    files, unread = list_files(folder)
    _warn_of_unread(folder, unread)
    return files


def list_files(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images in a folder and below, and how many others by their ending."""
    files, others = list[Path](), Counter[str]()
    for place, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                files.append(Path(place) / name)
            elif not name.startswith("."):
                others[Path(name).suffix.lower() or name] += 1
    return sorted(files), others


class UnreadFilesWarning(UserWarning):
    """A folder of images holds files of formats that are not read."""


def _warn_of_unread(folder: Path, unread: Counter[str]) -> None:
    if unread:
        warnings.warn(
            f"`{folder}` holds files that are not read: {_counted(unread)}. Save "
            f"images among them in another format ({', '.join(EXTENSIONS[:3])} …).",
            UnreadFilesWarning,
            stacklevel=4,
        )


def _counted(endings: Counter[str]) -> str:
    """Return numbers and endings, the most frequent first."""
    most = [f"{count} {shown(ending)}" for ending, count in endings.most_common(5)]
    return ", ".join([*most, "…"] if len(endings) > 5 else most)


@DATASETS.register("list")
@dataclass(frozen=True)
class ImageList(OwnImages):
    """Labels count from 0; a class is named after its folder if it has one."""

    sentence: ClassVar[str] = "Your own images: a list file, `relative/path.jpg label`."
    form: ClassVar[str] = "a list file with lines `relative/path.jpg label`"

    val_path: str = ""
    """Another list file, of the validation split; empty holds one out."""

    test_path: str = ""
    """Another list file, of the test split; empty holds one out."""

    image_root: str = ""
    """Folder that the paths in the lists start from; empty is the list's own."""

    def read(self, path: Path) -> Found:
        """Return the splits that have a list."""
        train = read_list(path)
        num_classes = int(train.labels.max()) + 1
        check_every_class(train.labels, num_classes, f"`{path}`")
        root = Path(self.image_root).expanduser() if self.image_root else path.parent
        listed = {"train": train}
        for name, other in (("val", self.val_path), ("test", self.test_path)):
            if other:
                listed[name] = read_list(
                    Path(other).expanduser(), num_classes=num_classes
                )
        splits = {
            name: FileSplit(ImageFiles(root, part.paths), part.labels)
            for name, part in listed.items()
        }
        return Found(splits, folder_names(train.paths, train.labels, num_classes))


ENDINGS = {".csv": "csv", ".txt": "list", ".lst": "list", ".parquet": "parquet"}
"""What a file of some ending is likely to be."""


def parse_data_option(option: str) -> dict[str, str]:
    """Return the data settings that an option stands for.

    Args:
        option: ``folder:PATH``, ``csv:FILE``, ``list:FILE``, ``parquet:PATH``,
            ``datasets:PATH|NAME`` or the name of a data set. An existing folder needs
            no type.

    Example:
        >>> parse_data_option("folder:photos/birds")
        {'name': 'folder', 'path': 'photos/birds'}
        >>> parse_data_option("digits_lt")
        {'name': 'digits_lt'}
    """
    name, colon, path = option.partition(":")
    if option and name not in DATASETS and Path(option).is_dir():
        form = "parquet" if any(Path(option).glob("*.parquet")) else "folder"
        return {"name": form, "path": option}
    if option and name not in DATASETS and Path(option).exists():
        raise ValueError(_form_is_missing(option))
    dataset = DATASETS.get(name)
    if not colon:
        return {"name": name}
    if not issubclass(dataset, OwnImages):
        raise ValueError(
            f"`--data` {option}: {name} takes no path. Say where it lies with "
            "--data-root."
        )
    if not path:
        raise ValueError(f"`--data` {option}: the path is missing.")
    return {"name": name, "path": path}


def _form_is_missing(option: str) -> str:
    """Return the error for a file without a type, with the most likely type."""
    form = ENDINGS.get(Path(option).suffix.lower())
    if form is None:
        return f"`--data {option}` has no type. Put csv:, list: or parquet: first."
    return f"`--data {option}` has no type. Did you mean `--data {form}:{option}`?"
