"""How far an extraction of features is, for people."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from tailshift.training.extraction_work import BATCH, Told
from tailshift.training.progress import duration, print_line

TIMED_IMAGES = 256
"""Images after which the time to go is told."""


@contextmanager
def extraction_progress(*, is_verbose: bool) -> Iterator[Callable[[int], Told]]:
    """Show how many images have gone through a network while the block runs.

    Yields:
        What takes the number of images, and returns what is told of those done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disable = not (is_verbose and console.is_terminal)
    with Progress(*columns, console=console, disable=disable, transient=True) as bar:

        def begin(num_images: int) -> Told:
            task = bar.add_task("features", total=num_images)
            began, done, is_told = 0.0, -1, not is_verbose

            def advance(images: int) -> None:
                nonlocal began, done, is_told
                bar.advance(task, images)
                if done < 0:  # the first batch takes longer
                    began, done = time.perf_counter(), 0
                    return
                done += images
                if not is_told and done >= TIMED_IMAGES:
                    is_told = True
                    each = (time.perf_counter() - began) / done
                    rest = (num_images - done - BATCH) * each
                    print_line(console, f"features: about {duration(rest)} to go")

            if is_verbose:
                text = f"features: {num_images:,} images go through the network once"
                print_line(console, text)
            return advance

        yield begin
