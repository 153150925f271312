"""What a report is made of: runs, what they are called, and what they score."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor

from tailshift.estimators import CarriedPrior, declared_kappa, measure_logit_prior
from tailshift.evaluation import Record, Sampling, Summary, evaluate, summarise
from tailshift.methods import METHODS, Method
from tailshift.predictions import Predictions
from tailshift.priors import counts_from_labels, from_counts, uniform
from tailshift.runs.run import Run, load_run
from tailshift.targets import PAPER_TARGETS


@dataclass(frozen=True)
class ReportRun:
    """One run: a method, its seed and what it predicted for the test set."""

    method: str
    """Title, as tables show it: ``"LADE (α = 0.1)"``."""
    seed: int
    """Runs of a method that differ in the seed are averaged."""
    predictions: Predictions
    """Logits and labels of the test set, with the priors they go by."""
    name: str = ""
    """Where the predictions came from, e.g. the run directory; shown as it is."""
    key: str = ""
    """Registered name of the method, whatever its settings; empty if it has none."""
    compensates: bool = False
    """Whether the method's inference is the compensation, as LADE's is."""
    unit: Literal["images", "samples"] = "samples"
    """What the test set consists of, as the page calls it."""
    declared: Tensor | None = None
    """The prior that the logits carry by the method, if it is known, (C,)."""
    carried: CarriedPrior | None = None
    """The prior that they carry by validation data, if there are any."""
    _records: dict[tuple[object, ...], list[Record]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def records(
        self,
        targets: Sequence[str] = PAPER_TARGETS,
        *,
        sampling: Sampling | None = None,
        repeats: int = 10,
    ) -> list[Record]:
        """Return what the run scores, as `tailshift.evaluate` does, but only once."""
        key = (*targets, sampling, repeats)
        if key not in self._records:
            self._records[key] = evaluate(
                self.predictions, targets, sampling=sampling, repeats=repeats
            )
        return self._records[key]


def row_names(
    method: str, *, compensates: bool, has_compensated: bool = True
) -> dict[bool, str]:
    """Return what a method's rows are called: the raw one at False, then the other.

    The compensated results of a method X are "PC X". If X's inference is the
    compensation, it has that row only, and the row is called X.

    Args:
        method: Title of the method.
        compensates: Whether its inference is the compensation.
        has_compensated: Whether there are compensated results.

    Example:
        >>> row_names("Softmax", compensates=False)
        {False: 'Softmax', True: 'PC Softmax'}
        >>> row_names("LADE (α = 0.1)", compensates=True)
        {True: 'LADE (α = 0.1)'}
    """
    if not has_compensated:
        return {False: method}
    return {True: method} if compensates else {False: method, True: f"PC {method}"}


_SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "lam": "λ", "tau": "τ"}


def distinct_titles(methods: Sequence[Method]) -> list[str]:
    """Return a title for each method; settings in which namesakes differ are added.

    Example:
        >>> from tailshift.recipes import load_recipe
        >>> lade = [f"method.alpha={alpha}" for alpha in (0.01, 0.1)]
        >>> changes = [["method.name=lade", change] for change in lade]
        >>> distinct_titles([load_recipe("digits_lt", c).method for c in changes])
        ['LADE (α = 0.01)', 'LADE (α = 0.1)']
    """
    titles = []
    for method in methods:
        namesakes = [asdict(m) for m in methods if m.title == method.title]
        differing = [
            f"{_SYMBOLS.get(key, key)} = {_text(value)}"
            for key, value in asdict(method).items()
            if any(other.get(key) != value for other in namesakes)
        ]
        ending = f" ({', '.join(differing)})" if differing else ""
        titles.append(method.title + ending)
    return titles


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


StatedPrior: TypeAlias = Literal["source", "uniform"]
"""What a file may leave unsaid: the prior of the training set, or the uniform one."""
PriorChoice: TypeAlias = Literal["declared", "measured"]
"""Which prior compensation takes off: that of the method, or of validation data."""
NamedRun: TypeAlias = Run | ReportRun | str | os.PathLike[str]
"""A run, its directory, or a file of logits as for :func:`run_from_logits`."""


def gather_runs(
    runs: NamedRun | Iterable[NamedRun],
    *,
    logit_prior: StatedPrior | None = None,
    prior: PriorChoice = "declared",
    announce: Callable[[str], None] = warnings.warn,
) -> list[ReportRun]:
    """Return what was named: runs first, then files of logits.

    Args:
        runs: Runs, run directories or files of logits; a single one needs no list.
        logit_prior: Prior that logits carry, for files that do not say.
        prior: Prior to compensate runs from: the declared one, or the one measured on
            their validation images.
        announce: Called with a sentence about each run that is not finished, about
            logits whose prior is not known, and about classes without test samples.
    """
    if isinstance(runs, Run | ReportRun | str | os.PathLike):
        runs = [runs]
    ready, trained, files = [], [], []
    for run in runs:
        if isinstance(run, ReportRun):
            ready.append(run)
        elif isinstance(run, Run):
            trained.append(run)
        elif is_logits_file(str(run)):
            files.append(str(run))
        else:
            trained.append(load_run(Path(run)))
    for run in trained:
        if not run.is_finished:
            announce(
                f"{run.directory} is not finished; {run.facts.epochs_done} of "
                f"{run.config.own_epochs} epochs are done."
            )
    if prior == "measured" and files:
        raise ValueError(
            f"`prior` 'measured' needs validation images, but {files[0]} is a file of "
            "logits. Measure it by ts.measure_logit_prior; save it as `logit_prior`."
        )
    others = [run_from_logits(file, logit_prior=logit_prior) for file in files]
    for other in others:
        if other.predictions.logit_prior is None:
            announce(
                f"{other.name} does not say which prior its logits carry, so only raw "
                "results are shown. Name it with --logit-prior."
            )
    found = [*ready, *report_runs(trained, prior=prior), *others]
    for sentence in dict.fromkeys(map(untested_classes, found)):
        if sentence:
            announce(sentence)
    return found


def report_runs(
    runs: Sequence[Run], *, prior: PriorChoice = "declared"
) -> list[ReportRun]:
    """Return runs as reports take them; settings in which they differ are named."""
    titles = distinct_titles([run.config.method for run in runs])
    return [
        report_run(run, title=title, prior=prior)
        for run, title in zip(runs, titles, strict=True)
    ]


def report_run(
    run: Run, split: str = "test", *, title: str = "", prior: PriorChoice = "declared"
) -> ReportRun:
    """Return a finished run as reports and tables take it.

    Args:
        run: A run with predictions.
        split: Split of the predictions, ``"val"`` or ``"test"``.
        title: Title of its method; by default the method's own.
        prior: Prior to compensate from: declared, or measured on validation images.
    """
    method, predictions = run.config.method, run.predictions(split)
    carried = _measure(run, prior) if split == "test" else None
    if prior == "measured" and carried is None:
        raise ValueError(
            f"`prior` 'measured' needs validation images, but {run.directory} has "
            "none. Hold some out in training, or take the declared prior."
        )
    if prior == "measured" and carried is not None:
        predictions = replace(predictions, logit_prior=carried.prior)
    return ReportRun(
        method=title or method.title,
        seed=run.config.seed,
        predictions=predictions,
        name=str(run.directory),
        key=run.config.method_name,
        compensates=method.compensates,
        unit="samples" if run.config.model.name == "features" else "images",
        declared=run.logit_prior,
        carried=carried,
    )


def _measure(run: Run, prior: PriorChoice) -> CarriedPrior | None:
    """Return the prior that validation logits show; None if there are none."""
    if not run.has_val_logits:
        return None
    val = run.predictions("val")
    return measure_logit_prior(
        val.logits, val.labels, run.source_prior, deviations=prior == "measured"
    )


def carried_sentence(run: ReportRun) -> str:
    """Return the declared and the measured κ in a sentence; empty if none is measured.

    Args:
        run: A run, compensated from either prior.
    """
    counts, found = run.predictions.source_counts, run.carried
    if found is None or counts is None or run.declared is None:
        return ""
    declared = declared_kappa(run.declared, from_counts(counts))
    low, high = found.interval
    verdict = "" if low <= declared <= high else ": they disagree"
    return (
        f"{_called(run)}: logits carry p_s^κ with κ = {declared:z.2f} declared, "
        f"{found.kappa:z.2f} measured on validation {run.unit} (95 %: {low:z.2f} to "
        f"{high:z.2f}){verdict}."
    )


def run_from_logits(
    file: str | Path, *, logit_prior: StatedPrior | None = None
) -> ReportRun:
    """Return the predictions in a file as a run to report on.

    Args:
        file: A path for :meth:`Predictions.load`, or ``"NAME=PATH"``. Without a name
            the file's own is shown; one that ends in ``-seed1`` gives the seed. A name
            that is the title of a method, such as ``LADE``, stands for that method.
        logit_prior: Prior that the logits carry, if the file does not say.

    Example:
        >>> from tempfile import mkdtemp
        >>> import torch
        >>> path = Path(mkdtemp()) / "forest-seed2.safetensors"
        >>> Predictions(torch.eye(2), torch.arange(2)).save(path)
        >>> run = run_from_logits(path)
        >>> run.method, run.seed
        ('forest', 2)
    """
    name, path = _split(str(file))
    predictions = Predictions.load(path)
    if logit_prior is not None and predictions.logit_prior is None:
        predictions = _with_prior(predictions, logit_prior, path)
    stem, seed = _seed(path.stem)
    run = ReportRun(name or stem, seed, predictions, name=str(path))
    for key in METHODS:
        if METHODS.get(key).title == run.method:
            return replace(run, key=key, compensates=METHODS.get(key).compensates)
    return run


def is_logits_file(file: str) -> bool:
    """Return whether this names a file of logits, with or without ``NAME=``."""
    path = _split(file)[1]
    return path.is_file() or (
        path.suffix in (".npz", ".safetensors") and not path.is_dir()
    )


def _split(file: str) -> tuple[str, Path]:
    name, _, path = file.rpartition("=")
    if not name or Path(file).exists():
        return "", Path(file)
    return name, Path(path)


def _seed(stem: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-seed(\d+)", stem)
    return (match[1], int(match[2])) if match else (stem, 0)


def _with_prior(
    predictions: Predictions, logit_prior: StatedPrior, path: Path
) -> Predictions:
    if logit_prior == "uniform":
        return replace(predictions, logit_prior=uniform(predictions.num_classes))
    if predictions.source_counts is None:
        raise ValueError(
            "`logit_prior` 'source' is the prior of the training set, but "
            f"{path} holds no `source_counts`. Add them to the file."
        )
    return replace(predictions, logit_prior=from_counts(predictions.source_counts))


def by_method(runs: Iterable[ReportRun]) -> dict[str, list[ReportRun]]:
    """Return the runs of each method, in the order they come in."""
    grouped: dict[str, list[ReportRun]] = {}
    for run in runs:
        grouped.setdefault(run.method, []).append(run)
    return grouped


def method_keys(runs: Iterable[ReportRun]) -> dict[str, str]:
    """Return the key of each method, which its colour goes by."""
    return {method: of_method[0].key for method, of_method in by_method(runs).items()}


def summarise_runs(
    runs: Sequence[ReportRun],
    targets: Sequence[str] = PAPER_TARGETS,
    *,
    metrics: Sequence[str] = ("accuracy",),
    sampling: Sampling | None = None,
    repeats: int = 10,
) -> list[Summary]:
    """Return mean and spread over the seeds of each method, target by target.

    Args:
        runs: Runs of any methods and seeds.
        targets: This and those below are as :func:`~tailshift.evaluation.evaluate` has
            them.
        metrics: Scores of the records, one list of summaries after the other.
        sampling: How test sets are drawn; by default as it suits each.
        repeats: How many random ones.
    """
    grouped = by_method(runs)
    records = {
        method: [
            run.records(targets, sampling=sampling, repeats=repeats)
            for run in of_method
        ]
        for method, of_method in grouped.items()
    }
    return [
        replace(summary, key=first.key, compensates=first.compensates)
        for metric in metrics
        for summary in summarise(records, metric)
        for first in grouped[summary.method][:1]
    ]


def unit_of(runs: Iterable[ReportRun]) -> str:
    """Return what the test set consists of: images if all runs say so, else samples."""
    return "images" if all(run.unit == "images" for run in runs) else "samples"


NUM_NAMED = 5  # class names in a sentence


def untested_classes(run: ReportRun) -> str:
    """Return a sentence on the classes without test samples; empty if there are none.

    Args:
        run: A run, whose test set it is about.

    Example:
        >>> import torch
        >>> names = ("kea", "kiwi", "tui")
        >>> p = Predictions(torch.eye(3)[:1], torch.tensor([0]), class_names=names)
        >>> untested_classes(ReportRun("A", 0, p))
        '2 classes without test samples are left out of every target: kiwi, tui.'
    """
    p = run.predictions
    tested = counts_from_labels(p.labels, p.num_classes)
    missing = [p.class_names[c] for c in (tested == 0).nonzero()[:, 0].tolist()]
    if not missing:
        return ""
    named = ", ".join(missing[:NUM_NAMED])
    if len(missing) > NUM_NAMED:
        named += f" and {len(missing) - NUM_NAMED:,} more"
    classes = "1 class" if len(missing) == 1 else f"{len(missing):,} classes"
    are = "is" if len(missing) == 1 else "are"
    return f"{classes} without test {run.unit} {are} left out of every target: {named}."


def report_targets(runs: Sequence[ReportRun]) -> Sequence[str]:
    """Return the targets that runs can be tried on: forward and backward need counts.

    Args:
        runs: Runs on the same classes.
    """
    ordered = runs[0].predictions.source_counts is not None
    return PAPER_TARGETS if ordered else ("uniform",)


def check_runs(runs: Sequence[ReportRun]) -> None:
    """Refuse runs that cannot stand in one table: other classes, or one twice."""
    if not runs:
        raise ValueError("`runs` must hold at least one run, but is empty.")
    seen: set[tuple[str, int]] = set()
    for run in runs:
        if (run.method, run.seed) in seen:
            raise ValueError(
                f"`runs` must differ in method or seed, but {_called(run)} is there "
                "twice. Give one of them another method name."
            )
        seen.add((run.method, run.seed))
        _check_comparable(runs[0], run)


def _check_comparable(first: ReportRun, run: ReportRun) -> None:
    a, b = first.predictions, run.predictions
    if a.num_classes != b.num_classes:
        raise ValueError(
            f"`runs` must share their classes, but {_called(first)} has "
            f"{a.num_classes} and {_called(run)} has {b.num_classes}."
        )
    if a.class_names != b.class_names:
        raise ValueError(
            f"`runs` must share their class names, but those of {_called(first)} and "
            f"{_called(run)} differ."
        )
    if _counts(a) != _counts(b):
        raise ValueError(
            f"`runs` must share their training counts, but those of {_called(first)} "
            f"and {_called(run)} differ. Write a report for each data set."
        )


def _called(run: ReportRun) -> str:
    return f"{run.method} seed {run.seed}"


def _counts(predictions: Predictions) -> list[int] | None:
    counts = predictions.source_counts
    return None if counts is None else counts.tolist()
