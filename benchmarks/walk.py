"""Count the files and functions of the package that a command executes.

Run ``python benchmarks/walk.py`` (a minute or two). It trains on the digits in a
temporary folder. A file counts if one of its functions runs; code that runs because a
module is imported does not count. A step is what runs from one learning rate to the
next. ``--list`` also prints the files of each walk, with their number of functions.
"""

import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
from PIL import Image

import tailshift
from tailshift.cli import main
from tailshift.training.loop import Trainer

SOURCE = str(Path(tailshift.__file__).parent)
NEXT_STEP = Trainer.set_learning_rate.__code__


class Walk:
    """The functions that run while it is entered, and those of each step."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.steps: list[set[CodeType]] = []

    def __enter__(self) -> "Walk":
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Record a call of one of the package's functions."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if _is_import(frame):
            return
        if code is NEXT_STEP:
            self.steps.append(set())
        self.functions.add(code)
        if self.steps:
            self.steps[-1].add(code)


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


def report(title: str, functions: set[CodeType]) -> None:
    """Print how many files and functions were executed."""
    named = {(code.co_filename, code.co_qualname) for code in functions}
    in_file = Counter(name for name, _ in named)
    print(f"{title}: {len(in_file)} files, {len(named)} functions")
    if "--list" in sys.argv:
        for name, number in sorted(in_file.items()):
            print(f"    {number:3} {Path(name).relative_to(SOURCE)}")


def count() -> None:
    """Print one line per command."""
    os.environ["TERM"] = "dumb"
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_photos(Path("photos"))
        train = walk("train digits_lt --method lade --set train.epochs=2 --output run")
        predict = walk("predict run photos --adapt -o answers.csv")
        evaluate = walk("evaluate run")
        reproduce = walk("reproduce table2 --quick --dry-run")
    sys.argv = arguments
    report("train digits_lt --method lade", train.functions)
    report("one training step of it", min(train.steps, key=len))
    report("predict --adapt", predict.functions)
    report("evaluate", evaluate.functions)
    report("reproduce table2 --quick --dry-run", reproduce.functions)


if __name__ == "__main__":
    count()
