"""One training for all clusters: LADE on the digits in float64, short or long."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

collect_ignore = ["plain_net.py"]  # a plugin registers itself when it is imported

SETTINGS = {
    "method.name": "lade",
    "method.alpha": "0.5",
    "model.name": "plain_net",
    "train.precision": "64-true",
    "train.accelerator": "cpu",
    "train.batch_size": "55",  # 276 images: six steps, the last of a single image
    "train.channels_last": "false",
    "train.checkpoint_every": "10",
    "train.timeout_minutes": "0.2",
}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a row to the CSV file that TAILSHIFT_CLUSTER_LOG names, if it is set."""
    log = os.environ.get("TAILSHIFT_CLUSTER_LOG")
    is_over = report.when == "call" or report.outcome == "skipped"
    if not log or not is_over:
        return
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always")
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    path, _, test = report.nodeid.partition("::")
    row = (Path(path).stem, test, report.outcome, round(report.duration), reason)
    is_new = not Path(log).exists()
    with Path(log).open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(("suite", "test", "outcome", "seconds", "why", "commit"))
        writer.writerow((*row, commit))


class Training:
    """The command, and what one process comes to."""

    plugin = Path(__file__).with_name("plain_net.py")
    short, long = 4, 150

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def arguments(self, output: Path, epochs: int) -> list[str]:
        """Return what follows ``tailshift``."""
        found = ["train", "digits_lt", "--plugin", str(self.plugin)]
        for name, value in (SETTINGS | {"train.epochs": str(epochs)}).items():
            found += ["--set", f"{name}={value}"]
        return [*found, "--output", str(output), "--resume"]

    def alone(self, output: Path, epochs: int) -> None:
        """Train in one process, from where a run stands."""
        command = [sys.executable, "-m", "tailshift", *self.arguments(output, epochs)]
        environment = self.environment
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    def difference(self, run: Path, epochs: int) -> float:
        """Return the largest one between a run's weights and those of one process."""
        expected = self.folder / str(epochs)
        if not expected.exists():
            self.alone(expected, epochs)
        weights = load_file(run / "weights.safetensors")
        wanted = load_file(expected / "weights.safetensors")
        assert weights.keys() == wanted.keys()
        return max(float((weights[name] - wanted[name]).abs().max()) for name in wanted)

    def wait_for(
        self, condition: Callable[[], object], seconds: float, what: str
    ) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come in {seconds:g} s"
            time.sleep(0.05)


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("alone"))
