"""Add rows to a results file that score kept logits by expectation.

Rows of earlier versions score the first test images of each class. A run whose logits
are kept also gets rows with ``sampling`` = ``expected``. No row is removed.
"""

import argparse
import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

from tailshift import Predictions, RunConfig, evaluate, load_recipe
from tailshift.evaluation.records import effective_text
from tailshift.evaluation.results import KEY, add_results, read_results
from tailshift.runs.index import kept_name

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Rescore every run of the file whose logits are in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "cifar100_lt.csv")
    parser.add_argument("--logits", type=Path, default=RESULTS / "logits")
    options = parser.parse_args()
    rows = list(expected_rows(read_results(options.results), options.logits))
    add_results(options.results, rows)
    print(f"{len(rows)} rows by expectation", flush=True)


def expected_rows(rows: list[dict[str, str]], logits: Path) -> Iterator[dict[str, str]]:
    """Yield the rows by expectation of the runs that lack them."""
    known = {tuple(row[column] for column in KEY) for row in rows}
    accuracies: dict[Path, dict[str, dict[str, str]]] = {}
    for row in rows:
        path = logits / kept_name(config_of(row["command"]))
        wanted = row | {"sampling": "expected"}
        is_known = tuple(wanted[column] for column in KEY) in known
        if row["sampling"] != "first" or is_known or not path.is_file():
            continue
        if path not in accuracies:
            accuracies[path] = score(path)
        found = accuracies[path][row["target"]]
        if row["target"] == "uniform":  # all images, and kept logits are rounded
            found |= {"raw": row["raw"], "compensated": row["compensated"]}
        yield wanted | found


def score(path: Path) -> dict[str, dict[str, str]]:
    """Return the columns that differ by the test set, for each target."""
    table: dict[str, dict[str, str]] = {}
    for record in evaluate(Predictions.load(path), sampling="expected"):
        column = "compensated" if record.compensated else "raw"
        own = table.setdefault(record.target, {})
        own[column] = f"{100 * record.accuracy:.2f}"
        own["num_samples"] = str(record.num_samples)
        own["num_effective"] = effective_text(record.num_effective)
    return table


def config_of(command: str) -> RunConfig:
    """Return the configuration that a row's command trains."""
    _, _, recipe, *options = shlex.split(command)
    pairs = itertools.pairwise(options)
    settings = [setting for option, setting in pairs if option == "--set"]
    return load_recipe(recipe, settings)


if __name__ == "__main__":
    main()
