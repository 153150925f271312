"""Re-target a public species model on drawn sites, and write the results as CSV.

The logits are those of somebody else's model: 1,022 insects, labels of 39 butterflies.
Half of the images are labelled data, and sites are drawn from the other half.

    python experiments/insect.py insect_logits.npz results/retarget.csv
"""

import csv
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tailshift as ts
from tailshift.estimators import MAPEstimator
from tailshift.estimators import certify as certify_logits

RATIOS = (1, 10, 50)
NUM_SITES = 10
LABELS = ("half", "100", "none")
COLUMNS = (
    *("ratio", "site", "num_images", "labels", "as_trained", "restricted"),
    *("adapted", "true_prior", "certified_low", "certified_high", "certified_status"),
)


class Insects:
    """Logits, labels and the classes that have labels.

    Args:
        path: The archive of logits.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as archive:
            self.logits = archive["logits"].astype(np.float64)
            self.labels = archive["labels"].astype(np.int64)
            self.names = [str(name) for name in archive["class_names"]]
        self.ids = np.unique(self.labels)

    def site(self, ratio: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labelled rows, rows of a site, and its prior over all classes."""
        rng = np.random.default_rng([ratio, seed])
        order = rng.permutation(len(self.labels))
        labelled, rest = np.split(order, [len(order) // 2])
        rank = rng.permutation(len(self.ids))
        shares = float(ratio) ** -(rank / (len(rank) - 1))
        there = [rest[self.labels[rest] == c] for c in self.ids]
        most = min(len(rows) / share for rows, share in zip(there, shares, strict=True))
        counts = np.maximum(1, np.round(most * shares)).astype(int)
        rows = np.concatenate(
            [
                rng.choice(a, n, replace=False)
                for a, n in zip(there, counts, strict=True)
            ]
        )
        prior = np.zeros(len(self.names))
        prior[self.ids] = counts / counts.sum()
        return labelled, rows, prior

    def write(self, path: Path, rows: np.ndarray, *, with_labels: bool = False) -> None:
        """Write probabilities as a CSV, as a user has them."""
        p = np.exp(self.logits[rows] - self.logits[rows].max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        head = ["image", *(["label"] if with_labels else []), *self.names]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            for row, scores in zip(rows, p.tolist(), strict=True):
                label = [self.names[self.labels[row]]] if with_labels else []
                writer.writerow([f"{row}.jpg", *label, *scores])


def accuracy(path: Path, labels: np.ndarray) -> float:
    """Return the accuracy in percent of a file of predictions."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    scores = np.array([row[1:] for row in rows], dtype=np.float64)
    return 100 * float((scores.argmax(axis=1) == labels).mean())


def certificate(data: Insects, labelled: np.ndarray, rows: np.ndarray) -> Any:
    """Return the certificate of the accuracy at a site."""
    uniform = ts.priors.uniform(len(data.names))
    held_out = ts.Predictions(
        torch.from_numpy(data.logits[labelled]).float(),
        torch.from_numpy(data.labels[labelled]),
        trained_prior=uniform,
    )
    return certify_logits(
        held_out,
        torch.from_numpy(data.logits[rows]).float(),
        classes=data.ids.tolist(),
        estimator=MAPEstimator(trained_prior=uniform, source_prior=uniform),
    )


def results(data: Insects, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each site and kind of labels."""
    listed, predictions, out = (folder / n for n in ("list.txt", "in.csv", "out.csv"))
    listed.write_text("\n".join(data.names[c] for c in data.ids), encoding="utf-8")
    for ratio in RATIOS:
        for seed in range(NUM_SITES):
            labelled, rows, prior = data.site(ratio, seed)
            data.write(predictions, rows)

            def score(rows: np.ndarray = rows, **options: Any) -> float:
                ts.retarget(predictions, out, classes=listed, force=True, **options)
                return accuracy(out, data.labels[rows])

            common = {
                "ratio": ratio,
                "site": seed,
                "num_images": len(rows),
                "as_trained": accuracy(predictions, data.labels[rows]),
                "restricted": score(),
            }
            for kind in LABELS:
                options: dict[str, Any] = {}
                certified = {}
                if kind != "none":
                    some = labelled if kind == "half" else labelled[:100]
                    data.write(folder / "labels.csv", some, with_labels=True)
                    options["labels"] = folder / "labels.csv"
                    found = certificate(data, some, rows)
                    certified = {
                        "certified_low": 100 * found.accuracy_interval[0],
                        "certified_high": 100 * found.accuracy_interval[1],
                        "certified_status": found.status,
                    }
                    right = found.retarget(torch.from_numpy(data.logits[rows]))
                    y = torch.from_numpy(data.labels[rows])
                    hits = (right.argmax(dim=1) == y).double().mean()
                    certified["certified_true"] = 100 * float(hits)
                yield {
                    **common,
                    "labels": kind,
                    "adapted": score(adapt=True, **options),
                    "true_prior": score(target=prior, **options),
                    **certified,
                }


def main() -> None:
    """Write the rows as they come."""
    data, output = Insects(Path(sys.argv[1])), Path(sys.argv[2])
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as folder,
        output.open("w", newline="", encoding="utf-8") as file,
    ):
        warnings.simplefilter("ignore")  # of classes with few labels
        columns = [*COLUMNS, "certified_true"]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in results(data, Path(folder)):
            rounded = {
                key: round(value, 3) if isinstance(value, float) else value
                for key, value in row.items()
            }
            writer.writerow(rounded)
            file.flush()


if __name__ == "__main__":
    main()
