"""Sites of image files: a table of paths and sites, and the priors of the sites."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailshift.estimators import SitePriors
from tailshift.files import read_text
from tailshift.runs.run import Run
from tailshift.text import cut

NEEDED_COLUMNS = ("path", "site")


def open_book(book: SitePriors | str | os.PathLike[str], run: Run) -> SitePriors:
    """Return a book, read from a file or as it is, whose classes are a run's."""
    found = book if isinstance(book, SitePriors) else SitePriors.load(book)
    if tuple(found.class_names) != tuple(run.class_names):
        raise ValueError(
            "`book` must have the classes of the run in their order, but has "
            f"{_few(found.class_names)}, and {run.directory} {_few(run.class_names)}."
        )
    return found


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(cut(name, 40)) for name in names[:3])
    return f"{len(names)} ({shown}{', …' if len(names) > 3 else ''})"


def place_of(path: str | os.PathLike[str]) -> str:
    """Return an absolute path without ``..``, by its name alone."""
    return os.path.normpath(Path(path).absolute())


def read_sites(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the site of each image by its absolute path, from a CSV file.

    Args:
        path: A file with the columns ``path`` and ``site``; others are not read. A path
            is one from the working directory, or else from the folder of the file.
    """
    path = Path(path)
    rows = _read_rows(path)
    here, there = (
        {place_of(folder / name): site for name, site in rows}
        for folder in (Path(), path.parent)
    )
    for number, (name, site) in enumerate(rows, start=2):
        if not name or not site:
            raise ValueError(
                f"{path} must name an image and its site in each row, but row "
                f"{number} does not."
            )
        if here[place_of(name)] != site:
            raise ValueError(
                f"{path} must name one site for an image, but names two for "
                f"`{cut(name)}`."
            )
    return there | here


def _read_rows(path: Path) -> list[tuple[str, str]]:
    """Return path and site of each row, empty if they are missing."""
    try:
        heading, *rows = csv.reader(io.StringIO(read_text(path), newline=""))
    except (csv.Error, ValueError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise ValueError(f"{path} must be a CSV file, but is none.") from None
    if not set(NEEDED_COLUMNS) <= set(heading):
        raise ValueError(
            f"{path} must have the columns path and site, but has "
            f"{cut(', '.join(heading)) or 'none'}."
        )
    full = [dict(zip(heading, row, strict=False)) for row in rows if row]
    return [(row.get("path", ""), row.get("site", "")) for row in full]


def sites_of(paths: Sequence[str], sites: Mapping[str, str], source: str) -> list[str]:
    """Return the site of each image.

    Args:
        paths: The images.
        sites: Site of each by its absolute path.
        source: What the sites are from, as the error calls it.
    """
    found = []
    for path in paths:
        site = sites.get(place_of(path))
        if site is None:
            raise ValueError(
                f"`sites` must name the site of every image, but {source} does not "
                f"name that of `{cut(path)}`."
            )
        found.append(site)
    return found
