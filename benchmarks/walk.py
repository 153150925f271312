"""Count the files of the package that a command goes through.

Run ``python benchmarks/walk.py`` (a minute or two); it trains on the digits in a
temporary folder. A file counts if one of its functions runs; what runs because a module
is imported does not. A step is what runs from one learning rate to the next.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

import numpy as np
from PIL import Image

import tailshift
from tailshift.cli import main
from tailshift.training.loop import Trainer

SOURCE = str(Path(tailshift.__file__).parent)
NEXT_STEP = Trainer.set_learning_rate.__code__


class Walk:
    """The files that are gone through while it is entered, and those of each step."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.steps: list[set[str]] = []

    def __enter__(self) -> "Walk":
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take down a call of one of the package's functions."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if _is_import(frame):
            return
        if code is NEXT_STEP:
            self.steps.append(set())
        self.files.add(code.co_filename)
        if self.steps:
            self.steps[-1].add(code.co_filename)


def _is_import(frame: FrameType | None) -> bool:
    """Return whether a module of the package is being executed."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def walk(command: str) -> Walk:
    """Run a command of the command line."""
    sys.argv = ["tailshift", *command.split()]
    with Walk() as walked:
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    return walked


def write_photos(folder: Path) -> None:
    """Write noise as grey images of the digits' size."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        pixels = rng.integers(256, size=(8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def count() -> None:
    """Print one line a command."""
    os.environ["TERM"] = "dumb"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_photos(Path("photos"))
        train = walk("train digits_lt --method lade --set train.epochs=2 --output run")
        predict = walk("predict run photos --adapt -o answers.csv")
        reproduce = walk("reproduce table2 --quick --dry-run")
    print(f"train digits_lt --method lade: {len(train.files)}")
    print(f"one training step of it: {min(map(len, train.steps))}")
    print(f"predict --adapt: {len(predict.files)}")
    print(f"reproduce table2 --quick --dry-run: {len(reproduce.files)}")


if __name__ == "__main__":
    count()
