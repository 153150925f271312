"""One way to fuzz: seeded, counted, its memory bounded, its outcome logged."""

import resource
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tailshift.config import ConfigError

SEED = 0
MOST_GROWTH = 300  # megabytes that a target may add to those at its start
MOST_ADDRESSES = 2**33  # bytes; what asks for more fails instead of the machine
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Tally:
    """Counts what inputs ended in; the memory is the highest, None if unknown."""

    def __init__(self) -> None:
        self.results = self.sentences = self.failures = 0
        self.megabytes: int | None = None

    @property
    def inputs(self) -> int:
        return self.results + self.sentences + self.failures

    def use(self, run: Callable[[], Any]) -> None:
        """Count a result, a sentence, or a failure, which is raised again."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run()
            self.results += 1
        except (ValueError, OSError, ImportError) as error:
            self.failures += 1  # unless it is a sentence
            check_sentence(error)
            self.failures -= 1
            self.sentences += 1
        except BaseException:
            self.failures += 1
            raise


def check_sentence(error: Exception) -> None:
    """Ours, and on one line; a configuration has a line for each fault."""
    ours = (ValueError, OSError, FileNotFoundError, ImportError, ModuleNotFoundError)
    assert type(error) in ours or type(error).__module__.startswith("tailshift")
    is_config = isinstance(error, ConfigError) or "config.json is damaged" in str(error)
    lines = error.faults if isinstance(error, ConfigError) else [str(error)]
    for line in lines:
        assert line.strip()
        assert "\n" not in line
        assert is_config or len(line) < 2000  # which repeats a key as it is


def _memory(name: str) -> int:
    """Return an entry of this process's status, in megabytes."""
    [line] = [x for x in STATUS.read_text().splitlines() if x.startswith(f"{name}:")]
    return int(line.split()[1]) // 1024


@contextmanager
def measured(tally: Tally) -> Iterator[None]:
    """Note the highest memory of the block; elsewhere than on Linux, nothing."""
    try:
        RESET.write_text("5")  # the highest so far is that of now
    except OSError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = (_memory("VmSize") << 20) + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    start = _memory("VmRSS")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        tally.megabytes = _memory("VmHWM") - start


@pytest.fixture
def fuzz(log_fuzzing: Callable[..., None]) -> Callable[..., Tally]:
    """Give inputs to a function until there were so many, or one breaks it.

    A few are the same each time; many depend on the seed and on the constants in the
    source, from which Hypothesis draws too: seed and commit, both logged, repeat them.
    """

    def fuzz(
        name: str,
        inputs: st.SearchStrategy[Any],
        use: Callable[[Any], Any],
        count: int,
        *,
        is_long: bool = False,
        most: int = MOST_GROWTH,
    ) -> Tally:
        tally, began = Tally(), time.monotonic()

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=not is_long,
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs)
        def run(value: Any) -> None:
            tally.use(lambda: use(value))

        try:
            with measured(tally):
                (seed(SEED)(run) if is_long else run)()
        finally:
            if is_long:
                log_fuzzing(
                    target=name,
                    inputs=tally.inputs,
                    results=tally.results,
                    sentences=tally.sentences,
                    failures=tally.failures,
                    seed=SEED,
                    peak_megabytes=tally.megabytes,
                    seconds=round(time.monotonic() - began),
                )
        assert tally.megabytes is None or tally.megabytes < most
        return tally

    return fuzz
