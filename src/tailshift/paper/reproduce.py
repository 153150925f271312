"""The paper's tables and figures: find the runs, train the others, compare or draw."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tailshift.config import RunConfig
from tailshift.evaluation import Record, evaluate
from tailshift.metrics.table import METRICS
from tailshift.paper.comparison import (
    Comparison,
    compare,
    compare_data_sets,
    compare_settings,
)
from tailshift.paper.duration import Estimate, estimate_runs
from tailshift.paper.numbers import (
    PAPER_FIGURES,
    Panel,
    PaperFigure,
    PaperTable,
    paper_table,
)
from tailshift.paper.sources import BENCHMARKS, Source, asked_numbers, source_of
from tailshift.paper.tune import INTERRUPTED
from tailshift.predictions import Predictions
from tailshift.recipes import load_recipe, recipe_names
from tailshift.report import ReportRun
from tailshift.report.runs import report_run
from tailshift.runs.directory import default_directory
from tailshift.runs.index import find_kept, find_runs, is_run_of
from tailshift.runs.run import CONFIG, Run, load, read_config
from tailshift.training import train

TABLES = tuple(range(1, 12))
"""The tables that can be reproduced."""

Announce = Callable[[str], None]


def _silent(text: str) -> None:
    """Announce nothing."""


@dataclass(frozen=True)
class Job:
    """A run that is missing, and where it will be."""

    config: RunConfig
    directory: Path


@dataclass(frozen=True)
class Plan:
    """What a table needs: the runs there are, and those that are missing."""

    table: PaperTable
    configs: dict[str, RunConfig]
    """For each recipe that the table asks for and that exists, what it is taken as."""
    runs: dict[str, list[Run]]
    """For each of these, its finished runs, one a seed."""
    missing: tuple[Job, ...]
    quick: bool = False
    kept: Mapping[str, Mapping[int, Path]] = field(default_factory=dict)
    """For each recipe, kept logits of seeds that have no run here."""

    @property
    def title(self) -> str:
        """The table's number and title, and whether it is about the quick recipes."""
        ending = "; ours: quick recipes" if self.quick else ""
        return f"Table {self.table.number}: {self.table.title}{ending}"

    def estimates(self, data_root: Path | None = None) -> list[Estimate]:
        """Return how long each missing run would take on this machine."""
        return estimate_runs([job.config for job in self.missing], data_root)

    def comparisons(self) -> list[Comparison]:
        """Return ours beside the paper's, cell by cell."""
        if self.table.number == 1:
            return compare_data_sets(self.configs)
        if self.table.number == 7:
            return compare_settings(self.configs)
        numbers = asked_numbers(self.table)
        sources = [source_of(number) for number in numbers]
        targets = tuple(dict.fromkeys(source.target for source in sources))
        records = {
            recipe: [_records(path, targets) for path in self.logits_of(recipe)]
            for recipe in dict.fromkeys(source.recipe for source in sources)
        }
        return [
            compare(number, _values(source, records[source.recipe]), source.metric)
            for number, source in zip(numbers, sources, strict=True)
        ]

    def logits_of(self, recipe: str) -> list[Path]:
        """Return the runs and the kept logits of a recipe, by seed."""
        found = {run.config.seed: run.directory for run in self.runs.get(recipe, ())}
        found = {**self.kept.get(recipe, {}), **found}
        return [found[seed] for seed in sorted(found)]


def reproduce(
    table: str,
    *,
    runs: str | Path = "runs",
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    settings: Sequence[str] = (),
    logits: str | Path | None = None,
    data_root: str | Path | None = None,
    dry_run: bool = False,
    announce: Announce = _silent,
) -> tuple[Plan, list[str]]:
    """Train what a table lacks; return the table's plan with all runs there are.

    Args:
        table: This and those up to ``settings`` are as in :func:`make_plan`.
        runs: The folder of the runs.
        seeds: One run of each recipe for each.
        quick: Take the quick recipes.
        settings: Changes to every recipe.
        logits: A folder of kept logits.
        data_root: The folder that holds the data, where it is read from disk.
        dry_run: Train nothing: the plan says what is missing.
        announce: Told what is about to be trained.

    Returns:
        The plan, and a sentence for each fault.
    """

    def planned(announce: Announce = _silent) -> Plan:
        return make_plan(
            table,
            runs=runs,
            seeds=seeds,
            quick=quick,
            settings=settings,
            logits=logits,
            announce=announce,
        )

    plan = planned(announce)
    if dry_run or not plan.missing:
        return plan, []
    faults = train_missing(plan, data_root=data_root, announce=announce)
    return planned(), faults


def make_plan(
    table: str,
    *,
    runs: str | Path = "runs",
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    settings: Sequence[str] = (),
    logits: str | Path | None = None,
    announce: Announce = _silent,
) -> Plan:
    """Return what a table needs.

    A finished run counts, at any depth of ``runs``, if its settings are those of the
    recipe; of two with the same seed, the later one. Kept logits stand in for a run
    that is not there.

    Args:
        table: ``"table1"`` to ``"table11"``.
        runs: The folder of the runs.
        seeds: One run of each recipe for each; further seeds that are there count too.
        quick: Take ``RECIPE_quick`` where there is one; a recipe without it is shown
            where its runs are there, but not trained.
        settings: Changes to every recipe, each like ``"train.devices=4"``.
        logits: A folder where ``tailshift evaluate --logits`` kept test logits. Their
            names tell the method's settings and no others, so there must be none.
        announce: Told of folders that look like runs but cannot be read.
    """
    paper = paper_table(parse_table(table))
    configs = _configs(paper, quick, settings)
    if paper.number in (1, 7):
        return Plan(paper, configs, {}, (), quick)
    found = find_runs(Path(runs), announce)
    matching = {
        recipe: one_a_seed(run for run in found if is_run_of(run.config, config))
        for recipe, config in configs.items()
    }
    kept = kept_logits(configs, logits, settings)
    missing = [
        make_job(config, seed, Path(runs))
        for recipe, config in configs.items()
        for seed in seeds
        if not (quick and config.recipe == recipe)
        and seed not in {run.config.seed for run in matching[recipe]}
        and seed not in kept.get(recipe, {})
    ]
    return Plan(paper, configs, matching, tuple(missing), quick, kept)


def kept_logits(
    configs: Mapping[str, RunConfig],
    logits: str | Path | None,
    settings: Sequence[str],
) -> dict[str, dict[int, Path]]:
    """Return the kept logits of each recipe by seed; none without a folder of them."""
    if logits is None:
        return {}
    if settings:
        raise ValueError(
            "`logits` must come without `settings`: the names of kept logits do not "
            "say which settings they were trained with."
        )
    if not Path(logits).is_dir():
        raise FileNotFoundError(f"There is no folder {logits} of kept logits.")
    return {
        recipe: find_kept(Path(logits), config) for recipe, config in configs.items()
    }


def train_missing(
    plan: Plan, *, data_root: str | Path | None = None, announce: Announce = _silent
) -> list[str]:
    """Train what a plan lacks; go on with a run that was interrupted.

    A data set that cannot be read does not stop the runs on the others.

    Returns:
        A sentence for each fault.
    """
    return train_jobs(plan.missing, data_root=data_root, announce=announce)


def train_jobs(
    jobs: Sequence[Job],
    *,
    data_root: str | Path | None = None,
    announce: Announce = _silent,
) -> list[str]:
    """Train runs as :func:`train_missing` does those of a plan."""
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


def parse_table(table: str) -> int:
    """Return the number of a table that can be reproduced.

    Example:
        >>> parse_table("table2")
        2
    """
    names = {f"table{number}": number for number in TABLES}
    if table not in names:
        raise ValueError(
            f"`table` must be one of {', '.join(names)}, but is {table!r}."
        )
    return names[table]


def _configs(
    table: PaperTable, quick: bool, settings: Sequence[str]
) -> dict[str, RunConfig]:
    """Return the configuration of each recipe that a table asks for and that exists."""
    names = set(recipe_names())
    if table.number in (1, 7):
        asked = [benchmark.format("lade") for benchmark in BENCHMARKS.values()]
    else:
        asked = [source_of(number).recipe for number in asked_numbers(table)]
    configs = {}
    for recipe in dict.fromkeys(asked):
        taken = f"{recipe}_quick" if quick and f"{recipe}_quick" in names else recipe
        if taken in names:
            configs[recipe] = load_recipe(taken, settings)
    return configs


def one_a_seed(runs: Iterable[Run]) -> list[Run]:
    """Return the last run of each seed, by seed."""
    by_seed = {run.config.seed: run for run in runs}
    return [by_seed[seed] for seed in sorted(by_seed)]


def make_job(recipe: RunConfig, seed: int, runs: Path, variant: str = "") -> Job:
    """Return a missing run; one that was begun there goes on as it was begun.

    Args:
        recipe: What to train.
        seed: With which seed.
        runs: The folder of the runs.
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


def _records(path: Path, targets: Sequence[str]) -> list[Record]:
    """Return the records of a run's directory, or of a file of kept logits."""
    is_run = path.is_dir()
    predictions = load(path).predictions("test") if is_run else Predictions.load(path)
    return evaluate(predictions, targets)


def _values(source: Source, runs: Sequence[Sequence[Record]]) -> list[float]:
    """Return our scores of a cell as the paper prints them, one for each seed."""
    values = [
        getattr(record, source.metric)
        for records in runs
        for record in records
        if (record.compensated, record.target) == (source.is_compensated, source.target)
    ]
    metric = METRICS[source.metric]
    return [metric.scaled(value) for value in values if not math.isnan(value)]


@dataclass(frozen=True)
class FigurePlan:
    """What a figure needs: the logits there are, and the runs that are missing."""

    figure: PaperFigure
    runs: tuple[ReportRun, ...]
    """What can be drawn, panel by panel."""
    missing: tuple[Job, ...]
    lacking: tuple[str, ...]
    """Panels of which nothing is there."""
    quick: bool = False

    @property
    def title(self) -> str:
        """The figure's number and title, and whether it is of the quick recipes."""
        ending = "; ours: quick recipes" if self.quick else ""
        return f"Figure {self.figure.number}: {self.figure.title}{ending}"

    def estimates(self, data_root: Path | None = None) -> list[Estimate]:
        """Return how long each missing run would take on this machine."""
        return estimate_runs([job.config for job in self.missing], data_root)


def plan_figure(
    figure: str,
    *,
    runs: str | Path = "runs",
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    settings: Sequence[str] = (),
    logits: str | Path | None = None,
    announce: Announce = lambda text: None,
) -> FigurePlan:
    """Return what a figure needs, by the rules of `reproduce.make_plan` for tables.

    Args:
        figure: ``"figure2"``, ``"figure3"``, ``"figure4"`` or ``"figure6"``.
        runs: The folder of the runs.
        seeds: One run of each panel for each; further seeds that are there count too.
        quick: Take the quick recipes; those that have none are not trained.
        settings: Changes to every recipe.
        logits: A folder of kept logits, for runs that are not there.
        announce: Told of folders that look like runs but cannot be read.
    """
    paper = PAPER_FIGURES[check_paper_figure(figure)]
    found = find_runs(Path(runs), announce)
    drawn: list[ReportRun] = []
    missing: list[Job] = []
    lacking = []
    for panel in paper.panels:
        config = _config(panel, quick, settings)
        there = (
            {} if config is None else _logits(panel, config, found, logits, settings)
        )
        drawn += [there[seed] for seed in sorted(there)]
        if config is not None and not (quick and config.recipe == panel.recipe):
            variant = "" if panel.alpha is None else f"-alpha{panel.alpha:g}"
            absent = [seed for seed in seeds if seed not in there]
            missing += [make_job(config, s, Path(runs), variant) for s in absent]
        if not there:
            lacking.append(panel.title)
    return FigurePlan(paper, tuple(drawn), tuple(missing), tuple(lacking), quick)


def reproduce_figure(
    figure: str,
    *,
    runs: str | Path = "runs",
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    settings: Sequence[str] = (),
    logits: str | Path | None = None,
    data_root: str | Path | None = None,
    dry_run: bool = False,
    announce: Announce = lambda text: None,
) -> tuple[FigurePlan, list[str]]:
    """Train what a figure lacks; return its plan and a sentence for each fault.

    Args:
        figure: This and those up to ``logits`` are as in :func:`plan_figure`.
        runs: The folder of the runs.
        seeds: One run of each panel for each.
        quick: Take the quick recipes.
        settings: Changes to every recipe.
        logits: A folder of kept logits.
        data_root: The folder that holds the data, where it is read from disk.
        dry_run: Train nothing: the plan says what is missing.
        announce: Told what is about to be trained.
    """

    def planned(announce: Announce = lambda text: None) -> FigurePlan:
        return plan_figure(
            figure,
            runs=runs,
            seeds=seeds,
            quick=quick,
            settings=settings,
            logits=logits,
            announce=announce,
        )

    plan = planned(announce)
    if dry_run or not plan.missing:
        return plan, []
    faults = train_jobs(plan.missing, data_root=data_root, announce=announce)
    return planned(), faults


def check_paper_figure(figure: str) -> str:
    """Return the name of a figure that can be reproduced; refuse any other."""
    if figure not in PAPER_FIGURES:
        raise ValueError(
            f"`figure` must be one of {', '.join(PAPER_FIGURES)}, but is {figure!r}."
        )
    return figure


def _config(panel: Panel, quick: bool, settings: Sequence[str]) -> RunConfig | None:
    """Return what a panel is trained as; None for a recipe that is not there."""
    names = set(recipe_names())
    has_quick = quick and f"{panel.recipe}_quick" in names
    taken = f"{panel.recipe}_quick" if has_quick else panel.recipe
    if taken not in names:
        return None
    own = [] if panel.alpha is None else [f"method.alpha={panel.alpha}"]
    return load_recipe(taken, [*own, *settings])


def _logits(
    panel: Panel,
    config: RunConfig,
    found: Sequence[Run],
    logits: str | Path | None,
    settings: Sequence[str],
) -> dict[int, ReportRun]:
    """Return the runs of a panel by seed; kept logits stand in for one not there."""
    own = one_a_seed(run for run in found if is_run_of(run.config, config))
    runs = {r.config.seed: replace(report_run(r), method=panel.title) for r in own}
    kept = kept_logits({panel.recipe: config}, logits, settings).get(panel.recipe, {})
    from_files = {
        seed: ReportRun(panel.title, seed, Predictions.load(path), name=str(path))
        for seed, path in kept.items()
    }
    return {**from_files, **runs}
