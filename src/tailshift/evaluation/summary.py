"""Summaries: mean ± standard deviation of accuracy over the runs of each method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from tailshift.evaluation.records import Record


@dataclass(frozen=True)
class Summary:
    """Accuracy of one method on one target over its runs, in fractions."""

    method: str
    """The method's display name."""
    target: str
    """The target's name, as in the records."""
    raw_mean: float
    """Mean accuracy of the logits as they are."""
    raw_sd: float
    """Standard deviation over runs (n − 1 in the denominator); 0 for one run."""
    compensated_mean: float
    """Mean accuracy after compensation to the target; NaN without it."""
    compensated_sd: float
    """Standard deviation of that, as above; NaN without compensation."""
    num_runs: int
    """Number of runs, one a seed."""


def summarise(records: Mapping[str, Sequence[Sequence[Record]]]) -> list[Summary]:
    """Return one summary for each method and target, in the order they come in.

    Args:
        records: For each method's display name, one list of records per run; the runs
            of a method must cover the same targets.

    Example:
        >>> nan = float("nan")
        >>> runs = [
        ...     [Record("uniform", False, 4, right, nan, nan, nan, 1.0, right)]
        ...     for right in (0.25, 0.75)
        ... ]
        >>> [summary] = summarise({"Softmax": runs})
        >>> f"{summary.raw_mean} ± {summary.raw_sd:.3f}, {summary.num_runs} runs"
        '0.5 ± 0.354, 2 runs'
    """
    summaries = []
    for method, runs in records.items():
        tables = [_by_target(run) for run in runs]
        _check_runs(method, tables)
        targets = dict.fromkeys(target for target, _ in tables[0])
        summaries += [_summary(method, target, tables) for target in targets]
    return summaries


Table = dict[tuple[str, bool], float]


def _by_target(run: Sequence[Record]) -> Table:
    """Return the accuracies of a run, by target and whether it is compensated."""
    return {(record.target, record.compensated): record.accuracy for record in run}


def _check_runs(method: str, tables: list[Table]) -> None:
    if not tables:
        raise ValueError(f"`records` must have a run of {method!r}, but has none.")
    for index, table in enumerate(tables):
        differing = sorted(table.keys() ^ tables[0].keys())
        if differing:
            target, compensated = differing[0]
            kind = "compensated" if compensated else "raw"
            raise ValueError(
                f"The runs of {method!r} must cover the same targets, but only one of "
                f"runs 0 and {index} has a {kind} record of {target!r}."
            )


def _summary(method: str, target: str, tables: list[Table]) -> Summary:
    raw_mean, raw_sd = _mean_and_sd(tables, (target, False))
    compensated_mean, compensated_sd = _mean_and_sd(tables, (target, True))
    return Summary(
        method=method,
        target=target,
        raw_mean=raw_mean,
        raw_sd=raw_sd,
        compensated_mean=compensated_mean,
        compensated_sd=compensated_sd,
        num_runs=len(tables),
    )


def _mean_and_sd(tables: list[Table], key: tuple[str, bool]) -> tuple[float, float]:
    values = [table[key] for table in tables if key in table]
    if not values:
        return float("nan"), float("nan")
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
