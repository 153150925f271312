"""The paper's tables and figures: find the runs, train the others, compare or draw."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tailshift.config import RunConfig
from tailshift.evaluation import Record, evaluate
from tailshift.evaluation.results import training_command
from tailshift.files import check_new
from tailshift.methods import LADE
from tailshift.metrics.table import METRICS
from tailshift.paper import comparison, numbers
from tailshift.paper.duration import Estimate, estimate_runs, missing_data
from tailshift.paper.numbers import BENCHMARKS, Source, asked_numbers, source_of
from tailshift.paper.tune import INTERRUPTED
from tailshift.predictions import Predictions
from tailshift.recipes import load_recipe, recipe_names
from tailshift.report import ReportRun
from tailshift.report.runs import report_run
from tailshift.runs.directory import default_directory
from tailshift.runs.files import CONFIG, read_config, resume_command
from tailshift.runs.index import find_kept, find_runs, is_run_of
from tailshift.runs.run import Run
from tailshift.training import train
from tailshift.training.jobs import Failure, Job, num_at_once, run_jobs

TABLES = {f"table{number}": number for number in range(1, 12)}
"""The tables that can be reproduced."""
_FACTS = ("table1", "table7")  # they compare recipes, and need no run

Announce = Callable[[str], None]


def _silent(text: str) -> None:
    """Announce nothing."""


@dataclass(frozen=True)
class PaperRequest:
    """A table or figure of the paper, and what it is reproduced from."""

    what: str
    """``"table1"`` to ``"table11"``, or ``"figure2"``, ``3``, ``4`` or ``6``."""
    runs: str | Path = "runs"
    """Folder of the runs."""
    seeds: Sequence[int] = (0,)
    """One run of each recipe for each; further seeds that are there count too."""
    quick: bool = False
    """Take ``RECIPE_quick`` if there is one; a recipe without it is not trained, but
    its runs are shown."""
    settings: Sequence[str] = ()
    """Changes to every recipe, each like ``"train.devices=4"``."""
    logits: str | Path | None = None
    """Folder of the logits that ``tailshift evaluate --logits`` saved. Their names tell
    the method's settings and no others, so there must be none."""
    data_root: str | Path | None = None
    """Folder that holds the data, if it is read from disk."""

    def __post_init__(self) -> None:
        """Refuse what cannot be reproduced."""
        known = [*TABLES, *numbers.PAPER_FIGURES]
        if self.what not in known:
            raise ValueError(
                f"`what` must be one of {', '.join(known)}, but is {self.what!r}."
            )
        if self.logits is not None and self.settings:
            raise ValueError(
                "`logits` must come without `settings`: the names of kept logits do "
                "not say which settings they were trained with."
            )
        if self.logits is not None and not Path(self.logits).is_dir():
            raise FileNotFoundError(f"There is no folder {self.logits} of kept logits.")

    @property
    def table(self) -> numbers.PaperTable:
        """The table of the paper that is asked for."""
        return numbers.paper_table(TABLES[self.what])

    @property
    def figure(self) -> numbers.PaperFigure | None:
        """The figure of the paper, if it is one that is asked for."""
        return numbers.PAPER_FIGURES.get(self.what)

    @property
    def panels(self) -> tuple[numbers.Panel, ...]:
        """The classifiers behind it; those of a table are called as their recipes."""
        if self.figure is not None:
            return self.figure.panels
        if self.what in _FACTS:
            recipes = [benchmark.format("lade") for benchmark in BENCHMARKS.values()]
        else:
            recipes = [source_of(cell).recipe for cell in asked_numbers(self.table)]
        return tuple(numbers.Panel(recipe, recipe) for recipe in dict.fromkeys(recipes))

    def config(self, panel: numbers.Panel) -> RunConfig | None:
        """Return what a panel is trained as; None for a recipe that is not there."""
        names, quick = set(recipe_names()), f"{panel.recipe}_quick"
        taken = quick if self.quick and quick in names else panel.recipe
        if taken not in names:
            return None
        own = [] if panel.alpha is None else [f"method.alpha={panel.alpha}"]
        return load_recipe(taken, [*own, *self.settings])


@dataclass(frozen=True)
class Plan:
    """What a table or figure needs: the runs there are, and those that are missing."""

    request: PaperRequest
    configs: Mapping[str, RunConfig]
    """What each panel is trained as, if its recipe exists, by the panel's title."""
    found: Mapping[str, Mapping[int, Run | Path]]
    """For each of these, by seed, its finished run or a file of kept logits."""
    missing: tuple[Job, ...]
    faults: tuple[str, ...] = ()
    """A sentence for each run that could not be trained."""

    @property
    def title(self) -> str:
        """Number and title in the paper, and how ours differ: quick, LADE's mode."""
        notes = ["quick recipes"] if self.request.quick else []
        if self.request.what != "table1":  # which compares data
            notes += [f"LADE in mode {mode}" for mode in self._modes]
        ending = f"; ours: {', '.join(notes)}" if notes else ""
        shown = self.request.figure or self.request.table
        kind = "Table" if isinstance(shown, numbers.PaperTable) else "Figure"
        return f"{kind} {shown.number}: {shown.title}{ending}"

    @property
    def _modes(self) -> list[str]:
        """Modes of LADE's regulariser, where it counts."""
        methods = [config.method for config in self.configs.values()]
        modes = [m.mode for m in methods if isinstance(m, LADE) and m.alpha]
        return list(dict.fromkeys(modes))

    @property
    def lacking(self) -> list[str]:
        """Panels of which nothing is there."""
        titles = [panel.title for panel in self.request.panels]
        return [title for title in titles if not self.found.get(title)]

    def estimates(self, announce: Announce = _silent) -> list[Estimate]:
        """Return how long each missing run would take on this machine.

        Args:
            announce: Told which step is timed next.
        """
        return estimate_runs(*self._wanted, announce)

    @property
    def missing_data(self) -> list[str]:
        """A sentence for each benchmark that would be trained on and is not there."""
        return missing_data(*self._wanted)

    @property
    def _wanted(self) -> tuple[list[RunConfig], Path | None]:
        root = self.request.data_root
        configs = [job.config for job in self.missing]
        return configs, None if root is None else Path(root)

    @property
    def commands(self) -> list[str]:
        """A command for each missing run; one that was begun is resumed."""
        root = self.request.data_root
        ending = "" if root is None else f" --data-root {shlex.quote(str(root))}"
        return [f"{_command(job)}{ending}" for job in self.missing]

    def comparisons(self) -> list[comparison.Comparison]:
        """Return a table: ours beside the paper's, cell by cell."""
        if self.request.what == "table1":
            return comparison.compare_data_sets(self.configs)
        if self.request.what == "table7":
            return comparison.compare_settings(self.configs)
        asked = asked_numbers(self.request.table)
        sources = [source_of(number) for number in asked]
        targets = tuple(dict.fromkeys(source.target for source in sources))
        records = {
            recipe: [evaluate(_predictions(run), targets) for run in runs.values()]
            for recipe, runs in self.found.items()
        }
        cells = []
        for number, source in zip(asked, sources, strict=True):
            own = _records_of(source, records.get(source.recipe, []))
            values = _values(source.metric, own)
            cells.append(
                comparison.compare(number, values, source.metric, **_spreads(own))
                if source.metric == "accuracy"
                else comparison.compare(number, values, source.metric)
            )
        return cells

    def runs(self) -> list[ReportRun]:
        """Return what a figure is drawn from, panel by panel."""
        return [
            _shown_as(title, self.configs[title], seed, run)
            for title, runs in self.found.items()
            for seed, run in runs.items()
        ]

    def draw(
        self, folder: str | Path = "figures", *, force: bool = False
    ) -> list[Path]:
        """Draw a figure as SVG and PNG; return the files, none if nothing is there.

        Args:
            folder: Folder for the files, made if it is missing.
            force: Replace files that exist.
        """
        from tailshift.report.plots import FIGURES, save_figure  # Matplotlib is slow

        runs, figure = self.runs(), self.request.figure
        if figure is None or not runs:
            return []
        paths = figure_files(self.request.what, folder, force=force)
        save_figure(FIGURES.get(figure.name)(runs, "uniform"), paths, overwrite=force)
        return paths


def figure_files(what: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Return the files of a figure; without ``force`` none of them may exist."""
    paths = [Path(folder) / f"{what}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        check_new(path, force)
    return paths


def reproduce(
    what: str,
    *,
    dry_run: bool = False,
    jobs: int = 1,
    announce: Announce = _silent,
    **options: Any,
) -> Plan:
    """Train what a table or figure of the paper lacks; return all there is for it.

    ``comparisons()`` of the result is the table, ``draw(folder)`` writes the figure,
    and ``faults`` says what could not be trained.

    Args:
        what: ``"table1"`` to ``"table11"``, ``"figure2"``, ``"figure3"``, ``"figure4"``
            or ``"figure6"``.
        dry_run: Train nothing: ``missing`` says what would be trained.
        jobs: Number of runs at once, each in a process of its own if there are several;
            0 is one for each GPU or core.
        announce: Called with a sentence before each training, and about folders that
            look like runs but cannot be read.
        options: ``runs``, ``seeds``, ``quick``, ``settings``, ``logits`` and
            ``data_root``, as the fields of
            :class:`~tailshift.paper.reproduce.PaperRequest`.

    Example:
        >>> plan = reproduce("table7", dry_run=True)
        >>> cell = plan.comparisons()[0]
        >>> cell.row, cell.column, cell.ours_mean, cell.paper
        ('CIFAR-100-LT (IB 10)', 'λ', 0.01, 0.01)
    """
    request = PaperRequest(what, **options)
    plan = make_plan(request, announce)
    if dry_run or not plan.missing:
        return plan
    options = {"data_root": request.data_root, "announce": announce}
    faults = train_jobs(plan.missing, at_once=jobs, **options)
    return replace(make_plan(request), faults=tuple(faults))


def make_plan(request: PaperRequest, announce: Announce = _silent) -> Plan:
    """Return what a table or figure needs.

    A finished run counts, at any depth of the runs' folder, if its settings are those
    of the recipe; of two with the same seed, the later one. Kept logits stand in for a
    run that is not there.
    """
    configs = {p: c for p in request.panels if (c := request.config(p)) is not None}
    by_title = {panel.title: config for panel, config in configs.items()}
    if request.what in _FACTS:
        return Plan(request, by_title, {}, ())
    trained = find_runs(Path(request.runs), announce)
    found = {
        panel.title: _found(config, trained, request.logits)
        for panel, config in configs.items()
    }
    missing = [
        make_job(config, seed, Path(request.runs), _variant(panel))
        for panel, config in configs.items()
        for seed in request.seeds
        if not (request.quick and config.recipe == panel.recipe)
        and seed not in found[panel.title]
    ]
    return Plan(request, by_title, found, tuple(missing))


def _found(
    config: RunConfig, trained: Sequence[Run], logits: str | Path | None
) -> dict[int, Run | Path]:
    """Return the runs and the kept logits of a configuration, by seed."""
    own = one_a_seed(run for run in trained if is_run_of(run.config, config))
    kept = {} if logits is None else find_kept(Path(logits), config)
    found: dict[int, Run | Path] = {**kept}
    found |= {run.config.seed: run for run in own}
    return {seed: found[seed] for seed in sorted(found)}


def _variant(panel: numbers.Panel) -> str:
    return "" if panel.alpha is None else f"-alpha{panel.alpha:g}"


def _predictions(run: Run | Path) -> Predictions:
    return run.predictions("test") if isinstance(run, Run) else Predictions.load(run)


def _shown_as(title: str, config: RunConfig, seed: int, run: Run | Path) -> ReportRun:
    if isinstance(run, Run):
        return report_run(run, title=title)
    return ReportRun(
        title,
        seed,
        Predictions.load(run),
        name=str(run),
        key=config.method_name,
        compensates=config.method.compensates,
    )


def train_jobs(
    jobs: Sequence[Job],
    *,
    data_root: str | Path | None = None,
    announce: Announce = _silent,
    at_once: int = 1,
) -> list[str]:
    """Train missing runs; resume one that was interrupted.

    A data set that cannot be read does not stop the runs on the others.

    Args:
        jobs: What to train.
        data_root: Folder that holds the data, if it is read from disk.
        announce: Called with a sentence before each training, if one runs at a time.
        at_once: Number of runs at once; 0 is one for each GPU or core.

    Returns:
        A sentence for each fault.
    """
    at_once = num_at_once(at_once, len(jobs))
    if at_once > 1:
        return _train_at_once(jobs, at_once, data_root)
    faults: dict[str, str] = {}
    for number, job in enumerate(jobs, start=1):
        config = job.config
        if config.data_name in faults:
            continue
        announce(
            f"training {config.recipe} with seed {config.seed} "
            f"({number} of {len(jobs)})"
        )
        try:
            run = train(config, output=job.directory, data_root=data_root, resume=True)
        except (OSError, ValueError) as error:
            faults[config.data_name] = f"{config.recipe}: {error}"
        except FloatingPointError as error:
            faults[str(job.directory)] = f"{config.recipe}: {error}"
        else:
            if not run.is_finished:
                raise KeyboardInterrupt(INTERRUPTED)
    return list(faults.values())


def _train_at_once(
    jobs: Sequence[Job], at_once: int, data_root: str | Path | None
) -> list[str]:
    failures = run_jobs(
        jobs, at_once, data_root=data_root, resume=True, advice=INTERRUPTED
    )
    faults: dict[str, Failure] = {}
    for failure in failures:  # of data that are not there all say the same
        faults.setdefault(failure.sentence, failure)
    return [f"{failure.job.config.recipe}: {failure}" for failure in faults.values()]


def one_a_seed(runs: Iterable[Run]) -> list[Run]:
    """Return the last run of each seed, by seed."""
    by_seed = {run.config.seed: run for run in runs}
    return [by_seed[seed] for seed in sorted(by_seed)]


def _command(job: Job) -> str:
    if (job.directory / CONFIG).is_file():
        return resume_command(job.directory)
    command = training_command(job.config).replace(" --data-root DIR", "")
    return f"{command} --output {shlex.quote(str(job.directory))}"


def make_job(recipe: RunConfig, seed: int, runs: Path, variant: str = "") -> Job:
    """Return a missing run; one that was started there resumes with its own settings.

    Args:
        recipe: What to train.
        seed: Seed of the run.
        runs: Folder of the runs.
        variant: Added to the directory's name, for a recipe with other settings.
    """
    config = recipe.model_copy(update={"seed": seed})
    directory = default_directory(config, runs, variant)
    if not (directory / CONFIG).is_file():
        return Job(config, directory)
    begun = read_config(directory)
    if begun.seed != seed or not is_run_of(begun, recipe):
        raise FileExistsError(
            f"{directory} holds a run with other settings than the recipe "
            f"{recipe.recipe}. Move it away, or name another folder of runs (--runs)."
        )
    return Job(begun, directory)


def _records_of(source: Source, runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return the records of a cell, one for each seed."""
    return [
        record
        for records in runs
        for record in records
        if (record.compensated, record.target) == (source.is_compensated, source.target)
    ]


def _values(metric: str, records: Sequence[Record]) -> list[float]:
    """Return our scores of a cell as the paper prints them, one for each seed."""
    values = [record.score(metric) for record in records]
    shown = METRICS.get(metric)
    return [shown.scaled(value) for value in values if not math.isnan(value)]


def _spreads(records: Sequence[Record]) -> dict[str, float]:
    """Return the spreads of an accuracy in points, means over seeds."""
    if not records:
        return {}
    return {
        "subset_sd": 100 * fmean(r.subset_deviation for r in records),
        "standard_error": 100 * fmean(r.standard_error for r in records),
    }
