"""A CSV of images: columns ``path``, ``label`` and, if there are splits, ``split``."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from tailshift.data.dataset import DATASETS
from tailshift.data.decoding import ImageFiles
from tailshift.data.file_split import FileSplit
from tailshift.data.list_files import checked_path, cut, note_path, read_text, shown
from tailshift.data.own_images import SPLIT_NAMES, Found, OwnImages, number_labels


@dataclass(frozen=True)
class ImageCSV(OwnImages):
    """A row an image; labels are names or integers, other columns are passed over."""

    sentence: ClassVar[str] = (
        "Your own images: a CSV with the columns path,label[,split]."
    )
    name: ClassVar[str] = "csv"
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
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
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
            f"{'more' if None in values else 'fewer'}. Put quotes around commas in a "
            "field."
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


DATASETS.add("csv", ImageCSV)
