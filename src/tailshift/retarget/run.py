"""Re-target a file of predictions, chunk by chunk, or scores in memory."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor
from tailshift.estimators import Adaptation
from tailshift.estimators.known_classes import KnownClasses
from tailshift.files import check_new
from tailshift.priors import write_prior
from tailshift.retarget.labelled import LabelledRows, read_labelled
from tailshift.retarget.logit_prior import LogitPrior
from tailshift.retarget.multilabel import plan_labels
from tailshift.retarget.names import ClassNames
from tailshift.retarget.plan import Planner, RetargetOptions, RetargetPlan
from tailshift.retarget.rewriting import TableRewriter
from tailshift.retarget.rollup import Taxonomy
from tailshift.retarget.sample import RowSample, draw_sample, first_rows, kind_of
from tailshift.retarget.scores import (
    SCORE_KINDS,
    ScoreArray,
    ScoreKind,
    blank_rows,
)
from tailshift.retarget.tables import Chunk, FilePath, Table, TableLayout, open_table
from tailshift.targets import Target
from tailshift.text import cut


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
    multilabel: bool = False,
    taxonomy: FilePath | None = None,
    confidence: float = 0.9,
    nodes: FilePath | None = None,
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
        multilabel: Treat scores as several labels per image, each with its own prior;
            by default only sigmoid scores. Targets are then label frequencies.
        taxonomy: CSV with a child and its parent per line; without it, class names
            such as ``Fruit/Apple/Gala`` tell the tree.
        confidence: Probability that a node must reach.
        nodes: CSV file to write the most specific sure node of each row to.
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
    asked: ScoreKind | None = "sigmoid" if multilabel else scores
    kind = kind_of(table, asked, first_rows(table))
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

    names = ClassNames(table.class_names)
    announce("choosing the target prior")
    if kind == "sigmoid":
        _check_labels_options(options, site_column, labels, nodes)
        plan = _label_plan(names, options, lambda: draw().scores)
    else:
        plan = Planner(
            names,
            kind,
            options,
            draw,
            _labelled(labels, table, kind, label_column),
            _reference(reference, reference_prior, table, kind, class_columns),
        ).plan()
    announce("writing scores")
    roll_up = None
    if nodes is not None:
        check_new(Path(nodes), force)
        tree = _tree(taxonomy, table.class_names)
        roll_up = partial(tree.roll_up, confidence=confidence)
    written = TableRewriter(table, kind, plan, site_column, roll_up)
    written.write(output, skip_broken)
    if nodes is not None:
        written.write_nodes(Path(nodes))
    return _result(table, kind, plan, written)


def _check_labels_options(
    options: RetargetOptions, site_column: str | None, labels: Any, nodes: Any
) -> None:
    """Raise if an option does not go with several labels per image."""
    given = {
        "match": options.match,
        "site_column": site_column,
        "labels": labels,
        "floor": options.floor or None,
        "counts": options.counts,
        "nodes": nodes,
    }
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ValueError(
            f"`{wrong[0]}` needs one label per image, but the scores are sigmoid "
            "scores. If they are not, say so (`scores`, --scores)."
        )


def _tree(taxonomy: FilePath | None, class_names: Sequence[str]) -> Taxonomy:
    if taxonomy is None:
        return Taxonomy.from_names(class_names)
    return Taxonomy.load(taxonomy, class_names)


def _label_plan(
    names: ClassNames, options: RetargetOptions, draw: Callable[[], ScoreArray]
) -> RetargetPlan:
    rule, notes = plan_labels(
        names,
        classes=options.classes,
        target=options.target,
        adapt=options.adapt,
        logit_prior=options.logit_prior,
        draw=draw,
    )
    num_classes = len(names.names)
    known = KnownClasses(torch.arange(num_classes), num_classes)
    return RetargetPlan(rule, known, notes=notes)


def _result(
    table: Table,
    kind: ScoreKind,
    plan: RetargetPlan,
    written: TableRewriter,
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
        logit_prior=torch.from_numpy(plan.rule.logit_prior),
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
