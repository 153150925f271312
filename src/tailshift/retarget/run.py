"""Re-target a file of predictions, chunk by chunk, or scores in memory."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor
from tailshift.estimators import Adaptation
from tailshift.files import atomic_write, check_new
from tailshift.priors import write_prior
from tailshift.retarget.labelled import LabelledRows, read_labelled
from tailshift.retarget.logit_prior import LogitPrior
from tailshift.retarget.names import ClassNames
from tailshift.retarget.plan import Planner, RetargetOptions, RetargetPlan
from tailshift.retarget.sample import RowSample, draw_sample, first_rows, kind_of
from tailshift.retarget.scores import (
    SCORE_KINDS,
    RetargetRule,
    ScoreArray,
    ScoreKind,
    blank_rows,
    row_faults,
)
from tailshift.retarget.tables import Chunk, FilePath, Table, TableLayout, open_table
from tailshift.targets import Target
from tailshift.text import cut

MAX_NAMED_ROWS = 5


@dataclass(frozen=True, eq=False)
class Retargeted:
    """What re-targeting found and did.

    Attributes:
        class_names: One per class.
        kind: Kind of the scores.
        logit_prior: Prior of the logits, shape (C,).
        target_prior: Target prior in use, shape (C,).
        interval: 95 % interval of an estimated prior of the classes that can occur,
            shape (2, C); None if nothing was estimated.
        site_priors: Target prior of each site, shape (C,).
        num_rows: Number of rows.
        broken: What is wrong with rows that were left as they were, by row number.
        notes: What was assumed and found, a sentence each.
        scores: The new scores if scores in memory were given, shape (N, C).
        adaptation: The estimate with labels, if there were enough.
    """

    class_names: tuple[str, ...]
    kind: ScoreKind
    logit_prior: Tensor
    target_prior: Tensor
    interval: Tensor | None
    site_priors: dict[str, Tensor]
    num_rows: int
    broken: dict[int, str]
    notes: tuple[str, ...]
    scores: ScoreArray | None = None
    adaptation: Adaptation | None = field(default=None, repr=False)

    def save_prior(self, path: FilePath) -> None:
        """Write the target prior as a file that can be given as a target."""
        write_prior(path, self.target_prior, self.class_names)


class MemoryTable(Table):
    """Scores in memory as a table.

    Args:
        scores: Shape (N, C).
        class_names: One per class; numbers if there are none.
    """

    format = "array"

    def __init__(self, scores: ArrayLike, class_names: Sequence[str]) -> None:
        f = as_tensor(scores, "predictions")
        if f.ndim != 2 or not f.is_floating_point() or not f.numel():
            raise ValueError(
                "`predictions` must be a path or scores of shape (N, C) in floating "
                f"point, but has shape {tuple(f.shape)} and {f.dtype}."
            )
        self._scores = f.double().numpy()
        C = f.shape[1]
        self.class_names = tuple(map(str, class_names)) or tuple(map(str, range(C)))
        if len(self.class_names) != C:
            raise ValueError(
                f"`class_names` has {len(self.class_names)} names but `predictions` "
                f"has {C} columns."
            )

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows."""
        for start in range(0, len(self._scores), self.rows_per_chunk):
            yield Chunk(start, self._scores[start : start + self.rows_per_chunk])

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Keep the new scores in memory."""
        found = [
            np.where(blank_rows(scores)[:, None], chunk.scores, scores)
            for chunk, scores in parts
        ]
        self.written = np.concatenate(found)


def retarget(
    predictions: FilePath | ArrayLike,
    output: FilePath | None = None,
    *,
    classes: Iterable[str] | FilePath | None = None,
    floor: float = 0.0,
    target: Target | None = None,
    counts: FilePath | None = None,
    smoothing: float = 1.0,
    adapt: bool = False,
    match: str | None = None,
    site_column: str | None = None,
    labels: FilePath | tuple[ArrayLike, ArrayLike] | None = None,
    label_column: str | None = None,
    logit_prior: LogitPrior = "uniform",
    reference: FilePath | None = None,
    reference_prior: Target | None = None,
    scores: ScoreKind | None = None,
    class_columns: str | None = None,
    class_names: Sequence[str] = (),
    logit_scale: float = 1.0,
    skip_broken: bool = False,
    force: bool = False,
    seed: int = 0,
    announce: Callable[[str], None] = lambda phase: None,
) -> Retargeted:
    """Re-target predictions of any classifier to another class distribution.

    Use this when somebody else trained the model, and you have a file of its
    predictions. The file is written again in the same format with other scores; all
    else in it stays as it was. Nothing is written if a row is unusable.

    Args:
        predictions: A file of predictions (CSV, TSV, Parquet, ``.npz``, ``.npy``,
            safetensors, SpeciesNet, MegaDetector or Timelapse JSON, Camtrap DP
            observations), or scores of shape (N, C).
        output: File to write. Scores in memory need none.
        classes: Names of the classes that can occur, or a file with one per line.
            Scientific and common names are found, whatever the case.
        floor: Share that all other classes keep together.
        target: Target prior: a name such as ``"uniform"``, a file, or shape (C,).
        counts: CSV of names and counts that tells the target prior.
        smoothing: Added to each count.
        adapt: Estimate the target prior from the predictions themselves.
        match: ``"expected"`` makes the expected class counts equal the target prior,
            ``"predicted"`` the number of rows predicted as each class.
        site_column: Column of sites; each gets its own estimated prior.
        labels: Labelled rows of the same model, to calibrate on: a file of scores with
            a column of labels, a CSV that shares a column with the predictions, or a
            pair of scores (n, C) and labels (n,).
        label_column: Name of the column of labels.
        logit_prior: ``"uniform"``, a file of training counts, a prior (C,),
            ``"measured"`` (on ``labels``), or an estimate without labels, ``"mean"``
            or ``"transport"``: see
            :func:`~tailshift.retarget.unlabelled.estimate_logit_prior`.
        reference: Predictions of known distribution, for the last two.
        reference_prior: Their class distribution; by default ``"uniform"``.
        scores: Kind of the scores; by default recognised.
        class_columns: ``"FIRST:LAST"``, names or a pattern of the columns of scores.
        class_names: One per class, for scores in memory.
        logit_scale: What logits are multiplied by, e.g. 100 for cosine similarities.
        skip_broken: Leave unusable rows as they are, and name them.
        force: Replace ``output`` if it exists.
        seed: Seed of samples and replicates.
        announce: Called with the name of each phase.

    Example:
        >>> p = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
        >>> names = ["deer", "fox", "lynx"]
        >>> found = retarget(p, class_names=names, classes=["Fox", "Lynx"])
        >>> found.scores.round(3)
        array([[0.   , 0.75 , 0.25 ],
               [0.   , 0.625, 0.375]])
    """
    if output is not None:
        check_new(Path(output), force)
    table = _table(
        predictions, output, TableLayout(class_columns, label_column), class_names
    )
    if scores is not None and scores not in SCORE_KINDS:
        raise ValueError(
            f"`scores` must be one of {', '.join(SCORE_KINDS)}, got {scores!r}."
        )
    kind = kind_of(table, scores, first_rows(table))
    if site_column is not None and site_column not in table.column_names:
        raise ValueError(
            f"There is no column {site_column!r} of sites. Columns: "
            f"{cut(', '.join(table.column_names)) or 'none'}."
        )
    options = RetargetOptions(
        classes=classes,
        floor=floor,
        target=target,
        counts=counts,
        smoothing=smoothing,
        adapt=adapt or site_column is not None,
        match=match,
        logit_prior=logit_prior,
        logit_scale=logit_scale,
        seed=seed,
    )
    _check_purpose(options, labels)

    def draw() -> RowSample:
        announce("sampling rows")
        return draw_sample(table, kind, site_column=site_column, seed=seed)

    planner = Planner(
        ClassNames(table.class_names),
        kind,
        options,
        draw,
        _labelled(labels, table, kind, label_column),
        _reference(reference, reference_prior, table, kind, class_columns),
    )
    announce("choosing the target prior")
    plan = planner.plan()
    announce("writing scores")
    written = _Pass(table, kind, plan, site_column)
    written.write(output, skip_broken)
    return _result(table, kind, plan, planner, written)


def _result(
    table: Table,
    kind: ScoreKind,
    plan: RetargetPlan,
    planner: Planner,
    written: "_Pass",
) -> Retargeted:
    adaptation, interval = plan.adaptation, None
    if adaptation is not None:
        interval = adaptation.interval
    elif plan.estimate is not None and plan.estimate.interval is not None:
        interval = plan.known.expand(plan.estimate.interval, 0.0)
    shown = kind.replace("_", " ")
    about = (
        f"{table.format}: {written.num_rows:,} rows, {len(table.class_names):,} "
        f"classes, scores are {shown}."
    )
    return Retargeted(
        class_names=table.class_names,
        kind=kind,
        logit_prior=planner.logit_prior,
        target_prior=plan.target_prior,
        interval=interval,
        site_priors={
            site: torch.from_numpy(rule.target_prior)
            for site, rule in plan.sites.items()
        },
        num_rows=written.num_rows,
        broken=written.broken,
        notes=(about, *written.notes, *plan.notes),
        scores=getattr(table, "written", None),
        adaptation=adaptation,
    )


def _table(
    predictions: FilePath | ArrayLike,
    output: FilePath | None,
    layout: TableLayout,
    class_names: Sequence[str],
) -> Table:
    if not isinstance(predictions, str | os.PathLike):
        if output is not None:
            raise ValueError(
                "`output` is for files. Scores in memory come back as `scores`."
            )
        return MemoryTable(predictions, class_names)
    if output is None:
        raise ValueError("Name the file to write (`output`, -o).")
    return open_table(predictions, layout)


def _check_purpose(options: RetargetOptions, labels: Any) -> None:
    """Raise if nothing says what to re-target to."""
    asked = (options.classes, options.target, options.counts, labels)
    if all(value is None for value in asked) and not options.adapt:
        raise ValueError(
            "Nothing to re-target to. Give the classes that can occur (`classes`), a "
            "`target`, `counts`, `labels` or `adapt`."
        )


def _labelled(
    labels: FilePath | tuple[ArrayLike, ArrayLike] | None,
    table: Table,
    kind: ScoreKind,
    label_column: str | None,
) -> LabelledRows | None:
    if labels is None:
        return None
    if isinstance(labels, str | os.PathLike):
        return read_labelled(labels, table, kind, label_column)
    values, y = labels
    return LabelledRows(
        as_tensor(values, "labels").double().numpy(),
        as_tensor(y, "labels").long().numpy(),
    )


def _reference(
    reference: FilePath | None,
    prior: Target | None,
    table: Table,
    kind: ScoreKind,
    class_columns: str | None,
) -> tuple[ScoreArray, Target | None] | None:
    if reference is None:
        if prior is not None:
            raise ValueError("`reference_prior` needs a file `reference`.")
        return None
    other = open_table(reference, TableLayout(class_columns))
    if other.class_names != table.class_names:
        raise ValueError(
            f"{reference} has other classes than the predictions. Both must come from "
            "one model."
        )
    return draw_sample(other, kind).scores, "uniform" if prior is None else prior


class _Pass:
    """One pass over a table that writes it with new scores."""

    def __init__(
        self, table: Table, kind: ScoreKind, plan: RetargetPlan, site_column: str | None
    ) -> None:
        self.table, self.kind, self.plan = table, kind, plan
        self.site_column = site_column
        self.broken: dict[int, str] = {}
        self.num_rows = self.num_partial = self.num_lost = 0

    def write(self, output: FilePath | None, skip_broken: bool) -> None:
        """Write the table, whole or not at all."""
        target = nullcontext(Path()) if output is None else atomic_write(Path(output))
        with target as path:
            self.table.write(path, self._parts())
            if self.broken and not skip_broken:
                raise ValueError(self._complaint())

    def _parts(self) -> Iterator[tuple[Chunk, ScoreArray]]:
        for chunk in self.table.chunks():
            yield chunk, self._rescored(chunk)

    def _rescored(self, chunk: Chunk) -> ScoreArray:
        scores = chunk.scores
        self.num_rows += len(scores)
        faults = row_faults(scores, self.kind, is_partial=self.table.is_partial)
        self.broken |= {chunk.start + i + 1: fault for i, fault in faults.items()}
        usable = np.ones(len(scores), dtype=bool)
        usable[list(faults)] = False
        missing = np.isnan(scores[usable])
        self.num_partial += int(missing.any(axis=1).sum())
        found = np.full_like(scores, np.nan)
        for rows, rule in self._rules(chunk, usable):
            found[rows] = rule(scores[rows])
        if missing.any():  # what a row does not name is not written
            found[usable] = np.where(missing, np.nan, found[usable])
        return found

    def _rules(self, chunk: Chunk, usable: Any) -> Iterator[tuple[Any, RetargetRule]]:
        """Yield the rows of each site, as a mask, with its rule."""
        if self.site_column is None:
            everything = bool(usable.all())
            yield (slice(None) if everything else usable), self.plan.rule
            return
        sites = np.array(chunk.columns[self.site_column], dtype=object)
        for site in set(sites[usable].tolist()):
            rule = self.plan.sites.get(str(site), self.plan.rule)
            yield usable & (sites == site), rule

    @property
    def notes(self) -> list[str]:
        """What a user should know about the rows."""
        found = []
        if self.num_partial:
            found.append(
                f"{self.num_partial:,} rows have the largest scores only; the rest of "
                "their mass is spread over the other classes by the logit prior."
            )
        if self.broken:
            found.append(f"{self._complaint(skipped=True)}")
        return found

    def _complaint(self, *, skipped: bool = False) -> str:
        shown = [
            f"row {row} {fault}"
            for row, fault in list(self.broken.items())[:MAX_NAMED_ROWS]
        ]
        more = len(self.broken) - len(shown)
        rows = ", ".join(shown) + (f" and {more:,} more" if more else "")
        count = f"{len(self.broken):,} of {self.num_rows:,} rows"
        if skipped:
            return f"{count} are unusable and left as they were: {rows}."
        return (
            f"{count} are unusable as {self.kind.replace('_', ' ')}: {rows}. Fix them, "
            "leave them as they are (`skip_broken`, --skip-broken), or name another "
            "kind of scores (`scores`, --scores)."
        )
