"""Tables of images: Parquet files in the hub's layout, and Hugging Face data sets."""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tailshift.data.dataset import DATASETS
from tailshift.data.image_split import FileSplit
from tailshift.data.list_files import shown
from tailshift.data.own_images import SPLIT_NAMES, Found, OwnImages, number_labels
from tailshift.files import free_memory


@DATASETS.register("parquet")
@dataclass(frozen=True)
class ImageParquet(OwnImages):
    """Encoded images and labels in columns; splits by the files' names.

    A file ``train-00000-of-00002.parquet`` belongs to the split train, and so on for
    ``validation`` and ``test``; a name that tells no split counts as train.
    """

    sentence: ClassVar[str] = (
        "Your own images: Parquet tables as the Hugging Face hub has them."
    )
    form: ClassVar[str] = "a Parquet file, or a folder of them"

    image_column: str = "image"
    """The column of encoded images: structs with the field `bytes`, or bytes."""

    label_column: str = "label"
    """The column of labels: integers or names."""

    def read(self, path: Path) -> Found:
        """Return the splits that the files' names tell."""
        tables = self._tables(path)
        for table in tables.values():
            self._check_images(path, table.column(self.image_column).type)
        names = class_names_in(tables["train"].schema, self.label_column)
        labels = {
            split: table.column(self.label_column).to_pylist()
            for split, table in tables.items()
        }
        if not names:
            texts = [str(label) for part in labels.values() for label in part]
            names = number_labels(texts)[1]
            index = {name: c for c, name in enumerate(names)}
            labels = {s: [index[str(v)] for v in part] for s, part in labels.items()}
        splits = {}
        for split, table in tables.items():
            self._check_labels(labels[split], len(names), f"`{path}` split {split}")
            images = ImageTable(
                path, split, table.column(self.image_column), np.arange(len(table))
            )
            splits[split] = FileSplit(
                images, torch.tensor(labels[split], dtype=torch.int64)
            )
        return Found(splits, names)

    def _tables(self, path: Path) -> dict[str, Any]:
        arrow, parquet = _import("pyarrow"), _import("pyarrow.parquet")
        columns = [self.image_column, self.label_column]
        parts: dict[str, list[Any]] = {}
        size, most = 0, free_memory()
        for file in parquet_files(path):
            with _telling_faults(file):
                about = parquet.read_metadata(file)
                there = about.schema.to_arrow_schema().names
                size += unpacked_size(about)
            if not set(columns) <= set(there):
                raise ValueError(
                    f"`{file}` must have the columns {' and '.join(columns)}, but has "
                    f"{shown(', '.join(there))}. Name them with data.image_column and "
                    "data.label_column."
                )
            if size > most:
                raise ValueError(
                    f"`{file}` unpacks to {size / 1e9:.1f} GB, with the tables before "
                    f"it, but only {most / 1e9:.1f} GB of memory are free. Save the "
                    "images as files."
                )
            with _telling_faults(file):
                table = parquet.read_table(file, columns=columns, memory_map=True)
            parts.setdefault(split_of(file), []).append(table)
        if "train" not in parts:
            raise ValueError(f"`{path}` must have a train split, but has none.")
        with _telling_faults(path):  # their columns may be of different types
            return {name: arrow.concat_tables(tables) for name, tables in parts.items()}

    def _check_images(self, path: Path, kind: Any) -> None:
        types = _import("pyarrow.types")
        names = [field.name for field in kind] if types.is_struct(kind) else []
        inner = kind.field("bytes").type if names.count("bytes") == 1 else kind
        is_bytes = types.is_binary(inner) or types.is_large_binary(inner)
        if not is_bytes and not types.is_fixed_size_binary(inner):
            raise ValueError(
                f"`{path}` must have encoded images in the column "
                f"{shown(self.image_column)}, bytes or structs with the field `bytes`, "
                f"but has {shown(str(kind))}. Name another with data.image_column."
            )

    def _check_labels(self, labels: list[Any], num_classes: int, where: str) -> None:
        for row, label in enumerate(labels):
            if type(label) is not int or not 0 <= label < num_classes:
                raise ValueError(
                    f"{where} row {row} must have a label in 0..{num_classes - 1}, but "
                    f"has {label}."
                )


@DATASETS.register("datasets")
@dataclass(frozen=True)
class ImageDatasets(ImageParquet):
    """A data set of Hugging Face's package `datasets`, with an image and a label."""

    sentence: ClassVar[str] = (
        "Your own images: a data set of Hugging Face, saved to disk or by its name."
    )
    form: ClassVar[str] = "a folder of save_to_disk, or a data set's name on the hub"

    def _tables(self, path: Path) -> dict[str, Any]:
        package = _import("datasets")
        is_saved = any((path / name).is_file() for name in SAVED)
        with _telling_faults(path, "a data set of Hugging Face"):
            found = (package.load_from_disk if is_saved else package.load_dataset)(
                path.as_posix()
            )
        parts = dict(found) if isinstance(found, dict) else {"train": found}
        parts = {SPLIT_NAMES.get(name, name): part for name, part in parts.items()}
        if "train" not in parts:
            raise ValueError(
                f"`{path}` must have a split train, but has {shown(', '.join(parts))}."
            )
        known = {name: parts[name] for name in SPLIT_NAMES.values() if name in parts}
        return {name: self._table(path, part) for name, part in known.items()}

    def _table(self, path: Path, part: Any) -> Any:
        columns = [self.image_column, self.label_column]
        if not set(columns) <= set(part.column_names):
            raise ValueError(
                f"`{path}` must have the columns {' and '.join(columns)}, but has "
                f"{shown(', '.join(part.column_names))}. Name them with "
                "data.image_column and data.label_column."
            )
        table = part.flatten_indices().data.table  # rows as they were selected
        return table.select(columns).replace_schema_metadata(
            part.features.arrow_schema.metadata  # has the class names
        )


SAVED = ("dataset_dict.json", "state.json")
"""What `save_to_disk` leaves in a folder, of several splits and of one."""


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Encoded images in a column of a table."""

    path: Path
    """Path of the table."""

    split: str
    """Which split of it these are from."""

    column: Any
    """pyarrow's column of structs or bytes."""

    rows: NDArray[np.int64]
    """Which rows of it these are, shape (N,)."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> tuple[str, ...]:
        """Split and row."""
        return tuple(f"{self.split} row {row}" for row in self.rows.tolist())

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """Length of each image, −1 if there is none, shape (N,)."""
        compute = _import("pyarrow.compute")
        column = self.column
        if str(column.type).startswith("struct"):
            column = compute.struct_field(column, "bytes")
        lengths = compute.fill_null(compute.binary_length(column), -1)
        return np.asarray(lengths.to_numpy(), dtype=np.int64)[self.rows]

    def name(self, i: int) -> str:
        """Return the table, split and row of image i."""
        return f"{self.path}, {self.split} row {self.rows[i]}"

    def read(self, i: int) -> bytes:
        """Return the encoded image i."""
        value = self.column[int(self.rows[i])].as_py()
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if encoded is None:
            raise FileNotFoundError
        return bytes(encoded)

    def subset(self, rows: NDArray[np.int64]) -> "ImageTable":
        """Return the images of some rows."""
        return replace(self, rows=self.rows[rows])


def parquet_files(path: Path) -> list[Path]:
    """Return a Parquet file, or those of a folder and below, by path."""
    if path.is_file():
        return [path]
    files = sorted(path.rglob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"there is no Parquet file `{path}`, nor any in it.")
    for file in files:
        if not file.is_file():  # a pipe would be waited for
            raise ValueError(f"`{file}` must be a regular file, but is not one.")
    return files


def unpacked_size(about: Any) -> int:
    """Return how many bytes a table takes in memory, at least, by its own account.

    A million rows of one value are a few bytes in a file; in Python a label is an
    object, and a text besides until the classes are numbered.

    Args:
        about: pyarrow's metadata of the file.
    """
    groups = map(about.row_group, range(about.num_row_groups))
    return int(sum(group.total_byte_size for group in groups) + 150 * about.num_rows)


def split_of(file: Path) -> str:
    """Return the split that a file's name tells.

    Example:
        >>> split_of(Path("data/validation-00000-of-00001.parquet"))
        'val'
        >>> split_of(Path("birds.parquet"))
        'train'
    """
    return SPLIT_NAMES.get(file.stem.split("-")[0].lower(), "train")


def class_names_in(schema: Any, column: str) -> tuple[str, ...]:
    """Return the names in the hub's metadata of a table; none if it has none."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(text)["info"]["features"][column]["names"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


@contextmanager
def _telling_faults(file: Path, form: str = "a Parquet table") -> Iterator[None]:
    """Turn what a library makes of broken data into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"`{file}` must be {form}, but cannot be read ({reason})."
        ) from None


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"{'Parquet tables' if module != 'datasets' else 'Hugging Face data sets'} "
            f"need the package {module.partition('.')[0]}, which is not installed. "
            "Install it with `pip install tailshift[datasets]`."
        ) from None
