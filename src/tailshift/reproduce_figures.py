"""The paper's figures: find the runs that are there, train the others, draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailshift.config import RunConfig
from tailshift.demo import report_run
from tailshift.evaluation.paper_figures import PAPER_FIGURES, Panel, PaperFigure
from tailshift.predictions import Predictions
from tailshift.recipes import load_recipe, recipe_names
from tailshift.report import ReportRun
from tailshift.reproduce import (
    Announce,
    Job,
    kept_logits,
    make_job,
    one_a_seed,
    train_jobs,
)
from tailshift.training import Run
from tailshift.training.estimate import Estimate, estimate_runs
from tailshift.training.finished import find_runs, is_run_of


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
