"""Summaries: mean ± standard deviation of a score over the runs of each method."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tailshift.evaluation.records import Record, deviation


@dataclass(frozen=True)
class Summary:
    """A score of one method on one target over its runs, as in the records."""

    method: str
    """The method's display name."""
    target: str
    """The target's name, as in the records."""
    raw_mean: float
    """Mean score of the logits as they are."""
    raw_sd: float
    """Standard deviation over runs (n − 1 in the denominator); 0 for one run, or over
    its random subsets if it has several."""
    compensated_mean: float
    """Mean score after compensation to the target; NaN without it."""
    compensated_sd: float
    """Standard deviation of that, as above; NaN without compensation."""
    num_runs: int
    """Number of runs, one per seed."""
    num_subsets: int = 1
    """Number of random subsets that each run's score is a mean of."""
    metric: str = "accuracy"
    """The score: attribute of :class:`~tailshift.evaluation.records.Record`."""
    key: str = ""
    """The method's registered name, if it has one."""
    compensates: bool = False
    """Whether the method's inference is the compensation."""
    num_samples: int = 0
    """Number of test samples behind a run's score, the fewest of the runs; 0 if not
    known."""
    num_effective: float = 0.0
    """Effective number of these, as in the records; 0 if not known."""
    sampling: str = ""
    """How the test set was drawn; empty if not known."""
    raw_error: float = math.nan
    """Standard error of the raw accuracy over test samples, the mean over runs; NaN for
    other scores, and if it is not known."""
    compensated_error: float = math.nan
    """Standard error of the compensated accuracy, as above."""
    raw_subset_sd: float = math.nan
    """Standard deviation of the raw accuracy over test sets with the target's counts,
    the mean over runs; NaN if it is not known."""
    compensated_subset_sd: float = math.nan
    """Standard deviation of the compensated accuracy, as above."""

    @property
    def num_values(self) -> int:
        """How many values the deviation is of: runs, or a single run's subsets."""
        return self.num_runs if self.num_runs > 1 else self.num_subsets


def summarise(
    records: Mapping[str, Sequence[Sequence[Record]]], metric: str = "accuracy"
) -> list[Summary]:
    """Return one summary for each method and target, in the order they come in.

    Args:
        records: For each method's display name, one list of records per run; the runs
            of a method must cover the same targets.
        metric: Score of the records to summarise.

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
        summaries += [_summary(method, target, tables, metric) for target in targets]
    return summaries


_Table = dict[tuple[str, bool], Record]


def _by_target(run: Sequence[Record]) -> _Table:
    """Return the records of a run, by target and whether it is compensated."""
    return {(record.target, record.compensated): record for record in run}


def _check_runs(method: str, tables: list[_Table]) -> None:
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


def _summary(method: str, target: str, tables: list[_Table], metric: str) -> Summary:
    raw = [table[target, False] for table in tables]
    compensated = [table[target, True] for table in tables if (target, True) in table]
    raw_mean, raw_sd = _mean_and_sd(raw, metric)
    compensated_mean, compensated_sd = _mean_and_sd(compensated, metric)
    return Summary(
        method=method,
        target=target,
        raw_mean=raw_mean,
        raw_sd=raw_sd,
        compensated_mean=compensated_mean,
        compensated_sd=compensated_sd,
        num_runs=len(tables),
        num_subsets=raw[0].num_subsets,
        metric=metric,
        num_samples=min(record.num_samples for record in raw),
        num_effective=min(record.num_effective for record in raw),
        sampling=raw[0].sampling,
        raw_error=_mean_spread(raw, metric, "standard_error"),
        compensated_error=_mean_spread(compensated, metric, "standard_error"),
        raw_subset_sd=_mean_spread(raw, metric, "subset_deviation"),
        compensated_subset_sd=_mean_spread(compensated, metric, "subset_deviation"),
    )


def _mean_spread(records: Sequence[Record], metric: str, spread: str) -> float:
    """Return the mean over runs of a spread, which only accuracy has."""
    values = [getattr(record, spread) for record in records]
    if metric != "accuracy" or not values or any(map(math.isnan, values)):
        return math.nan
    return fmean(values)


def _mean_and_sd(records: Sequence[Record], metric: str) -> tuple[float, float]:
    if not records:
        return math.nan, math.nan
    values = [record.score(metric) for record in records]
    if len(records) > 1:
        return fmean(values), deviation(values)
    subsets = records[0].deviation
    return values[0], subsets.score(metric) if subsets else 0.0
