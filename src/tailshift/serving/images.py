"""Predictions of image files: found, prepared, answered for their site, written."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TextIO, TypeAlias

import torch
from torch import Tensor

from tailshift.compensation import post_compensate
from tailshift.data.image_loader import default_num_workers
from tailshift.data.images import (
    BrokenImageError,
    ImageFiles,
    Preparation,
    Views,
    load_image,
)
from tailshift.data.memory import Normalisation
from tailshift.data.own_forms import EXTENSIONS, image_files
from tailshift.estimators import Adaptation, ConformalSets, SitePriors
from tailshift.estimators import adapt as adapt_to
from tailshift.estimators.known_classes import ClassList, named_classes
from tailshift.files import atomic_write, read_text
from tailshift.models.classifier import over_views
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike
from tailshift.runs.run import Run, as_run
from tailshift.target_names import SOURCE
from tailshift.targets import Target
from tailshift.text import csv_cell, cut, printable

PathLike: TypeAlias = str | os.PathLike[str]
LUMA = (0.299, 0.587, 0.114)  # red, green and blue in grey, as in Pillow
Track = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, eq=False)
class ImageLogits:
    """What a model answered for image files.

    Attributes:
        paths: The images that could be read, in the order requested.
        logits: Theirs, float32, shape (N, C).
        broken: Why each of the others could not be read, by its path.
    """

    paths: tuple[str, ...]
    logits: Tensor
    broken: dict[str, str]


def image_paths(names: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Return the images that files and folders name, each once.

    Args:
        names: Files, taken as they are; and folders, searched with all below them. One
            of them need not stand in a list.
    """
    paths: list[str] = []
    for name in map(Path, [names] if isinstance(names, str | os.PathLike) else names):
        if not name.exists():
            raise FileNotFoundError(f"there is no file or folder `{name}`.")
        found = image_files(name) if name.is_dir() else [name]
        if not found:
            raise ValueError(
                f"`{name}` must hold images ({', '.join(EXTENSIONS[:3])} …), "
                "but holds none."
            )
        paths += map(str, found)
    return tuple(dict.fromkeys(paths))


@torch.no_grad()
def image_logits(
    run: Run, paths: Sequence[str], *, views: Views | None = None, track: Track = iter
) -> ImageLogits:
    """Return a run's own logits of image files, which carry its trained prior.

    Args:
        run: Gives the model, the size of its images, their mean and their deviation.
        paths: The files.
        views: How each is seen; by default as the run's test images were.
        track: Wraps the numbers of the batches' first images, e.g. in a progress bar.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = run.model.to(device)
    views = run.config.eval.views if views is None else views
    load, size = _Load(run, paths, views), run.config.eval.batch_size
    kept: list[int] = []
    parts: list[Tensor] = []
    with ThreadPoolExecutor(default_num_workers()) as pool:
        for start in track(range(0, len(paths), size)):
            rows = range(start, min(start + size, len(paths)))
            loaded = dict(zip(rows, pool.map(load, rows), strict=True))
            images = {i: image for i, image in loaded.items() if image is not None}
            if images:
                batch = torch.stack(list(images.values())).to(device)
                parts.append(over_views(model, batch).float().cpu())
                kept += images
    broken = {paths[i]: reason for i, reason in sorted(load.broken.items())}
    if not parts:
        first, reason = next(iter(broken.items()))
        raise ValueError(
            f"none of the {len(paths)} images can be read; the first, `{first}`, "
            f"{reason}."
        )
    return ImageLogits(tuple(paths[i] for i in kept), torch.cat(parts), broken)


def preparation_of(run: Run) -> Preparation:
    """Return how a run's images were resized and cropped in evaluation."""
    if run.config.model.name == "features":
        raise ValueError(
            f"{run.directory} must have a network to read images, but was trained on "
            "features that were made elsewhere. `tailshift features` makes them here."
        )
    if run.facts.preparation is not None:
        return run.facts.preparation
    return run.config.data.preparation(run.facts.image_size)


class _Load:
    """Reads image i, normalised, with as many channels as the model takes."""

    def __init__(self, run: Run, paths: Sequence[str], views: Views) -> None:
        facts = run.facts
        self.broken: dict[int, str] = {}
        self._files = ImageFiles(Path(), tuple(paths))
        self._prepare = preparation_of(run).evaluation(views)
        self._normalise = Normalisation(facts.mean, facts.std)
        self._is_grey = facts.in_channels == 1

    def __call__(self, i: int) -> Tensor | None:
        """Return the image (c, H, W), or views of it; None if it is broken."""
        try:
            pixels = self._prepare(load_image(self._files, i))
        except BrokenImageError as error:
            self.broken[i] = str(error)
            return None
        images = self._normalise(pixels)
        if self._is_grey:
            luma = torch.tensor(LUMA)[:, None, None]
            images = (images * luma).sum(dim=-3, keepdim=True)
        return images


TOP = 5
SUFFIXES = (".csv", ".parquet")
AnswerRow: TypeAlias = dict[str, str | float]


@dataclass(frozen=True, eq=False)
class Answers:
    """A run's answers for images.

    Attributes:
        rows: One per image, in the order requested: ``path``, ``predicted``,
            ``probability``, and the next four classes with theirs; ``set`` and
            ``set_size`` if sets were asked for, ``site`` if sites were named.
        target_prior: :math:`p_t` that they are for, shape (C,); with several sites that
            of all of them together.
        reason: Why this prior, in a sentence, if it was to be estimated; else empty.
        broken: Why each of the other images could not be read, by its path.
        site_priors: With several sites, :math:`p_t` of each, shape (C,).
    """

    rows: list[AnswerRow]
    target_prior: Tensor
    reason: str
    broken: dict[str, str]
    site_priors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: PathLike) -> None:
        """Write the rows as CSV or Parquet, by the file's suffix."""
        write_answers(Path(path), self.rows)


def predict(
    run: Run | PathLike,
    images: PathLike | Iterable[PathLike],
    *,
    target: Target | None = None,
    adapt: bool = False,
    site: str | None = None,
    sites: Mapping[str, str] | PathLike | None = None,
    book: SitePriors | PathLike | None = None,
    sets: float | None = None,
    classes: ClassList | None = None,
    held_out: Predictions | PathLike | None = None,
    views: Views | None = None,
    track: Track = iter,
    announce: Callable[[str], None] = lambda phase: None,
) -> Answers:
    """Classify image files under a target prior, as ``tailshift predict`` does.

    Args:
        run: A finished run, or its directory.
        images: Files, and folders that are searched with all below them.
        target: The class mix to answer for: a prior, a name (``"uniform"``,
            ``"backward:10"`` …) or a file; by default that of the training data.
        adapt: Whether to estimate the target prior from these images. The estimate is
            followed if that is expected to help (:func:`~tailshift.estimators.adapt`).
        site: A site of ``book`` whose mix to answer for.
        sites: The site of each image by its path, or a CSV file with the columns
            ``path`` and ``site``: each is answered for the mix of its own.
        book: A book of priors, or its file, for ``site`` and ``sites``.
        sets: Share of images whose set of classes shall hold the right one
            (:class:`~tailshift.estimators.ConformalSets`).
        classes: Names or ids of the classes that can occur, or a text file with one
            name per line; all others get probability 0.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits. For ``adapt`` and ``sets``.
        views: See :func:`image_logits`; several to adapt with need the run's held-out
            logits to have them too.
        track: See :func:`image_logits`.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    _check_choice(target, adapt, site, sites, book)
    run = as_run(run)
    if (adapt or sets is not None) and held_out is None:
        _check_views(run, views, "adapt" if adapt else "sets")
    prior, reason = run.target_prior(SOURCE if target is None else target), ""
    paths = image_paths(images)
    by_path: dict[str, str] = {}
    by_site: dict[str, Tensor] = {}
    if book is not None:
        opened = open_book(book, run)
        prior = opened.prior("all" if site is None else site)
        by_path = _by_path(paths, sites)
        by_site = {name: opened.prior(name) for name in by_path.values()}
    known = None if classes is None else named_classes(classes, run.class_names)
    if known is not None:
        prior = known.expand(known.prior(prior), 0.0)
        by_site = {
            name: known.expand(known.prior(q), 0.0) for name, q in by_site.items()
        }
    conformal = None if sets is None else ConformalSets(sets)
    if conformal is not None:
        conformal.fit(held_out_logits(run if held_out is None else held_out))
    found = image_logits(run, paths, views=views, track=track)
    adaptation = None
    if adapt and held_out is None and not run.has_val_logits:
        reason = (
            f"{run.directory} has no validation logits to calibrate on, so predictions "
            "stay as trained. Give labelled logits (`held_out`, --held-out)."
        )
    elif adapt:
        labelled = held_out_logits(run if held_out is None else held_out)
        adaptation = adapt_to(
            labelled, found.logits, classes=classes, announce=announce
        )
        prior, reason = adaptation.target_prior, adaptation.reason
        if adaptation.status == "refused" and sets is not None:
            reason += " Prediction sets have no guaranteed coverage on these images."
    rows = _rows_by_site(run, found, prior, by_path, by_site, conformal, adaptation)
    return Answers(rows, prior, reason, found.broken, by_site)


def _check_choice(
    target: object, adapt: bool, site: object, sites: object, book: object
) -> None:
    """Refuse more than one class mix, and a site or a book without the other."""
    named = {"target": target, "adapt": adapt or None, "site": site, "sites": sites}
    given = [name for name, value in named.items() if value is not None]
    if given == ["target", "adapt"]:
        raise ValueError(
            "`target` names a class mix and `adapt` finds one: give one of them."
        )
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name in given)
        raise ValueError(f"{names} each say which class mix: give one of them.")
    if (site is None and sites is None) != (book is None):
        have, lack = ("`book`", "a site (`site`) or the site of each image (`sites`)")
        if book is None:
            have, lack = f"`{given[0]}`", "a book of priors (`book`)"
        raise ValueError(f"{have} needs {lack}, but there is none.")


def _check_views(run: Run, views: Views | None, use: str) -> None:
    if views not in (None, run.config.eval.views):
        raise ValueError(
            f"`views` must be {run.config.eval.views!r} with `{use}`, as the run's "
            f"held-out logits have it, but is {views!r}. Leave one of the two out, or "
            "train with eval.views set."
        )


def _by_path(
    paths: Sequence[str], sites: Mapping[str, str] | PathLike | None
) -> dict[str, str]:
    """Return the site of each image by its path; nothing if none are named."""
    if sites is None:
        return {}
    if isinstance(sites, Mapping):
        known = {place_of(path): site for path, site in sites.items()}
        source = "it"
    else:
        known, source = read_sites(sites), str(sites)
    return dict(zip(paths, sites_of(paths, known, source), strict=True))


def _rows_by_site(
    run: Run,
    found: ImageLogits,
    prior: Tensor,
    by_path: Mapping[str, str],
    by_site: Mapping[str, Tensor],
    conformal: ConformalSets | None,
    adaptation: Adaptation | None,
) -> list[AnswerRow]:
    """Return the rows in the order of the images, each under the prior of its site."""
    groups: dict[str, list[int]] = {}
    for i, path in enumerate(found.paths):
        groups.setdefault(by_path.get(path, ""), []).append(i)
    rows: dict[int, AnswerRow] = {}
    for name, chosen in groups.items():
        q, f = by_site.get(name, prior), found.logits[chosen]
        if adaptation is None:
            log_p = post_compensate(
                f.double(), logit_prior=run.logit_prior, target_prior=q
            ).log_softmax(dim=1)
        else:
            log_p = adaptation.retarget(f)
        answers = _rows([found.paths[i] for i in chosen], log_p.exp(), run.class_names)
        if conformal is not None:
            # The level of sets holds for the prior of the images, whether or not
            # predictions follow its estimate.
            estimated = adaptation is not None and adaptation.status != "refused"
            q_sets = adaptation.estimated_prior if adaptation and estimated else q
            _add_sets(answers, conformal, f, q_sets, run.class_names)
        site: AnswerRow = {"site": name} if by_path else {}
        rows |= {i: row | site for i, row in zip(chosen, answers, strict=True)}
    return [rows[i] for i in range(len(rows))]


def _add_sets(
    rows: Sequence[AnswerRow],
    conformal: ConformalSets,
    logits: Tensor,
    target_prior: Tensor,
    class_names: Sequence[str],
) -> None:
    """Add to each row the classes of its set, the likeliest first, and their number."""
    are_in = conformal.predict_sets(logits, target_prior)  # (N, C)
    g = post_compensate(
        logits.double(),
        logit_prior=conformal.logit_prior_,
        target_prior=target_prior,
    )
    order = g.argsort(dim=1, descending=True).tolist()
    for row, is_in, classes in zip(rows, are_in.tolist(), order, strict=True):
        names = [class_names[c] for c in classes if is_in[c]]
        row |= {"set": "; ".join(names), "set_size": len(names)}


def held_out_logits(source: Run | Predictions | PathLike) -> Predictions:
    """Return the validation logits of a run, or labelled logits or those of a file."""
    if isinstance(source, Predictions):
        return source
    if not isinstance(source, Run) and not Path(source).is_dir():
        return Predictions.load(source)
    run = as_run(source)
    if not run.has_val_logits:
        raise FileNotFoundError(
            f"{run.directory} has no validation logits to calibrate on. Give labelled "
            "logits (`held_out`, --held-out)."
        )
    return run.predictions("val")


def answer_rows(
    paths: Sequence[str],
    logits: Tensor,
    class_names: Sequence[str],
    *,
    logit_prior: VectorLike,
    target_prior: VectorLike,
) -> list[AnswerRow]:
    """Return a row for each image: the five likeliest classes under the target prior.

    Args:
        paths: One for each image.
        logits: They carry ``logit_prior``, shape (N, C).
        class_names: One for each class.
        logit_prior: The prior that the logits carry, shape (C,).
        target_prior: :math:`p_t` to answer for, shape (C,).

    Example:
        >>> import torch
        >>> even = [0.5, 0.5]
        >>> answer_rows(
        ...     ["a.jpg"],
        ...     torch.tensor([[1.0, 0.0]]),
        ...     ["cat", "dog"],
        ...     logit_prior=even,
        ...     target_prior=[0.25, 0.75],
        ... )[0]["predicted"]
        'dog'
    """
    probs = post_compensate(
        logits.double(), logit_prior=logit_prior, target_prior=target_prior
    ).softmax(dim=1)
    return _rows(paths, probs, class_names)


def _rows(
    paths: Sequence[str], probs: Tensor, class_names: Sequence[str]
) -> list[AnswerRow]:
    best = probs.topk(min(TOP, probs.shape[1]), dim=1)
    rows = []
    for path, shares, classes in zip(
        paths, best.values.tolist(), best.indices.tolist(), strict=True
    ):
        row: AnswerRow = {"path": path}
        for rank, (share, c) in enumerate(zip(shares, classes, strict=True), start=1):
            name, probability = columns(rank)
            row |= {name: class_names[c], probability: share}
        rows.append(row)
    return rows


def columns(rank: int) -> tuple[str, str]:
    """Return the names of the two columns of the class of a rank, 1 the likeliest.

    Example:
        >>> columns(1), columns(2)
        (('predicted', 'probability'), ('class_2', 'probability_2'))
    """
    if rank == 1:
        return "predicted", "probability"
    return f"class_{rank}", f"probability_{rank}"


def check_output(path: Path) -> None:
    """Refuse a file that is neither CSV nor Parquet."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"`output` must end in {' or '.join(SUFFIXES)}, but is {path}."
        )


def write_answers(path: Path, rows: Sequence[AnswerRow]) -> None:
    """Write rows as CSV or Parquet, by the file's suffix, whole or not at all."""
    check_output(path)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                print_answers(file, rows)
        else:
            _write_parquet(temporary, rows)


def print_answers(file: TextIO, rows: Sequence[AnswerRow]) -> None:
    """Write rows as CSV to an open file; six decimals of a probability."""
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _text(value) for key, value in row.items()})


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return csv_cell(value)
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def _write_parquet(path: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    try:
        arrow, parquet = map(import_module, ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        raise ModuleNotFoundError(
            "Parquet tables need the package pyarrow, which is not installed. Install "
            "it with `pip install tailshift[datasets]`, or write a .csv file."
        ) from None
    texts = [
        {k: printable(v) if isinstance(v, str) else v for k, v in row.items()}
        for row in rows
    ]
    parquet.write_table(arrow.Table.from_pylist(texts), path)


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
