"""Run directories: create, lock, resume and describe them."""

import contextlib
import errno
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tailshift.config import RunConfig, machine_settings
from tailshift.files import check_file_name, is_leftover, make_folder, remove_leftovers
from tailshift.models import AUTO
from tailshift.runs import files
from tailshift.runs.checkpoint import path_before, read_position, repair_checkpoint
from tailshift.storage import EditedFileError, write_json

LOCK = ".lock"

_held: set[int] = set()  # descriptors that a forked worker must close


class TrainingPosition(NamedTuple):
    """Step, epoch and samples of an error in training.

    Example:
        >>> print(TrainingPosition(7, 2, (30, 4)))
        step 7 (epoch 2, samples 30, 4)
    """

    step: int
    """Counted from 0."""
    epoch: int
    """Counted from 1."""
    sample_ids: Sequence[int]
    """The batch's positions in the training split."""

    def __str__(self) -> str:
        """Return step, epoch and the first samples."""
        ids = ", ".join(str(sample) for sample in self.sample_ids[:8])
        more = " …" if len(self.sample_ids) > 8 else ""
        return f"step {self.step} (epoch {self.epoch}, samples {ids}{more})"


class NotFiniteError(FloatingPointError):
    """A loss or gradient that is NaN or infinite.

    Args:
        what: Name and value of the quantity.
        place: Position in training.
        reason: The reason, a sentence, if known.

    Example:
        >>> print(NotFiniteError("the loss is nan", TrainingPosition(7, 2, (30, 4))))
        the loss is nan at step 7 (epoch 2, samples 30, 4). Train again with a lower \
optim.lr.
    """

    def __init__(self, what: str, place: TrainingPosition, reason: str = "") -> None:
        self.place = place
        why = f": {reason}" if reason else "."
        super().__init__(f"{what} at {place}{why} Train again with a lower optim.lr.")


@contextmanager
def hold_lock(directory: Path) -> Iterator[None]:
    """Hold a folder's lock file while the block runs.

    The operating system releases the lock when the process ends for any reason, so a
    leftover lock file blocks nobody. On a file system without locks nothing is locked.

    Raises:
        BlockingIOError: If another process holds it.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = _acquire(directory / LOCK)
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)
        (directory / LOCK).unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """Lock the file and return its descriptor, once the path refers to that file."""
    import fcntl  # not on Windows

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise BlockingIOError(
                f"`output` {path.parent} must be free, but another process "
                f"({owner or 'unknown'}) trains in it. Wait for its end, or name "
                "another folder (--output)."
            ) from None
        except OSError:  # the file system has no locks
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                _write_owner(descriptor)
                return descriptor
        os.close(descriptor)  # the last holder has just removed it


def _write_owner(descriptor: int) -> None:
    with contextlib.suppress(
        OSError
    ):  # only for an error message; the disk may be full
        os.ftruncate(descriptor, 0)
        owner = f"{os.getpid()} on {socket.gethostname()}"
        os.pwrite(descriptor, owner.encode(), 0)


def _release_in_child() -> None:
    """Close inherited descriptors, or a worker would hold its parent's lock."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


_FREE_SETTINGS = machine_settings(is_fixed=False)
"""Settings that may differ when a run is resumed: they do not affect results."""

_OPEN = {"model.name": AUTO, "train.precision": AUTO, "model.image_size": 0}
"""Settings that the images or the machine decide if they have this value."""

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def default_directory(
    config: RunConfig, runs: Path = Path("runs"), variant: str = ""
) -> Path:
    """Return ``runs/RECIPE/METHOD-seedN``.

    Args:
        config: Configuration of the run.
        runs: Folder of all runs.
        variant: Suffix of the method, for a recipe with other settings.
    """
    name = f"{config.method_name}{variant}-seed{config.seed}"
    return runs / check_file_name(config.recipe, "recipe") / name


def check_directory(
    directory: Path, config: RunConfig, *, resume: bool, force: bool
) -> None:
    """Reject a folder that a run would overwrite; change nothing."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(
            f"`output` must be a folder, but {directory} is a file. "
            "Name another folder (--output)."
        )
    if not directory.exists() or _is_empty(directory):
        return
    if resume and (directory / files.CONFIG).is_file():
        check_same_config(directory, config)
        return
    if not is_run_directory(directory):
        raise FileExistsError(
            f"`output` {directory} exists and is not a run directory, so nothing in it "
            "is replaced. Name another folder (--output)."
        )
    if not force:
        raise FileExistsError(
            f"`output` {directory} exists. Resume it (--resume), replace it "
            "(--force) or name another folder (--output)."
        )


@contextmanager
def open_directory(
    directory: Path, config: RunConfig, *, resume: bool, force: bool
) -> Iterator[bool]:
    """Lock a run directory for this process; yield whether its run is resumed.

    Files that a killed process left incomplete are removed, and a damaged checkpoint is
    replaced by the previous one. After a full disk or a non-finite loss, the error says
    what is saved.

    Args:
        directory: Run directory; created if it is missing.
        config: Configuration of the run.
        resume: Whether to resume an existing run.
        force: Whether to replace an existing run.

    Raises:
        BlockingIOError: If another process trains in it.
    """
    is_new = not directory.exists()
    make_folder(directory)
    try:
        with hold_lock(directory), _report_last_checkpoint(directory):
            # Check again: another process may have created a run since the first check.
            check_directory(directory, config, resume=resume, force=force)
            is_resumed = resume and (directory / files.CONFIG).is_file()
            remove_leftovers(directory)
            if is_resumed:
                _repair(directory)
            yield is_resumed
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # only if nothing was written
                directory.rmdir()


def is_run_directory(directory: Path) -> bool:
    """Return whether a folder has the configuration of a run."""
    try:
        files.read_config(directory)
    except (EditedFileError, files.MissingPluginError):
        return True
    except (OSError, ValueError):
        return False
    return True


def begin_directory(directory: Path, config: RunConfig) -> None:
    """Start a run directory: remove the files of an earlier run."""
    # Remove checkpoints first, the latest one last. If the process is killed here, the
    # folder has either no checkpoint or the complete earlier run.
    stem, _, suffix = files.CHECKPOINT.partition(".")
    for path in sorted(directory.glob(f"{stem}*.{suffix}")):
        path.unlink()
    best = directory / files.BEST
    names = [files.FACTS, files.FAILURE, files.WEIGHTS, files.METRICS_LOG]
    names += [files.ENVIRONMENT, files.LOG, files.TRACKING]
    for path in (best, path_before(best), *(directory / name for name in names)):
        path.unlink(missing_ok=True)
    for folder in (files.PREDICTIONS, files.TENSORBOARD):
        shutil.rmtree(directory / folder, ignore_errors=True)
    write_json(directory / files.CONFIG, config.to_mapping())
    write_json(directory / files.ENVIRONMENT, describe_environment())


def check_same_config(directory: Path, config: RunConfig) -> None:
    """Reject resuming a run with other settings than it was started with."""
    began = flat_settings(files.read_config(directory))
    asked = flat_settings(config)
    for key in asked:
        is_open = key in _OPEN and asked[key] == _OPEN[key]
        if key in _FREE_SETTINGS or is_open:  # the run has recorded the actual value
            continue
        if began.get(key) != asked[key]:
            raise ValueError(
                f"{directory} was started with {key} = {began.get(key)!r}, but "
                f"--resume asks for {asked[key]!r}. Resume with the settings it was "
                "started with, or name another folder (--output)."
            )


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Return all settings by their dotted names, like ``"train.epochs"``."""
    return _flat(config.to_mapping())


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        below = _flat(value) if isinstance(value, Mapping) else {}
        flat |= {f"{key}.{name}": part for name, part in below.items()} or {key: value}
    return flat


def _is_empty(directory: Path) -> bool:
    """Return whether a folder has only leftovers of a killed process."""
    return all(path.name == LOCK or is_leftover(path) for path in directory.iterdir())


def _repair(directory: Path) -> None:
    """Complete the files that a killed or failed process left incomplete."""
    (directory / files.FAILURE).unlink(missing_ok=True)
    repair_checkpoint(directory / files.CHECKPOINT)
    if not (directory / files.ENVIRONMENT).is_file():
        write_json(directory / files.ENVIRONMENT, describe_environment())


@contextmanager
def _report_last_checkpoint(directory: Path) -> Iterator[None]:
    try:
        yield
    except FloatingPointError as error:
        where = ""
        if isinstance(error, NotFiniteError) and directory.is_dir():
            failure = {"message": str(error), **error.place._asdict()}
            write_json(directory / files.FAILURE, failure)
            where = (
                f" All of the batch's sample ids are in {directory / files.FAILURE}."
            )
        raise FloatingPointError(f"{error}{where} {_last_good(directory)}") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not directory.is_dir():
            raise FileNotFoundError(
                f"{directory} is gone: it was removed or moved while the run trained "
                "in it. Train again, or move it back and resume with "
                f"`{files.resume_command(directory)}`."
            ) from error
        if error.errno not in _DISK_FAULTS:
            raise
        raise OSError(
            f"{directory} cannot be written to ({os.strerror(error.errno)}). Files "
            "saved before are intact. Free some space, then resume with "
            f"`{files.resume_command(directory)}`."
        ) from error


def _last_good(directory: Path) -> str:
    """Return a sentence about the checkpoint to resume from."""
    path, resume = directory / files.CHECKPOINT, files.resume_command(directory)
    if not path.is_file():
        return "There is no checkpoint yet."
    position = read_position(path)
    return (
        f"The last good checkpoint is {path} (after {position.epoch} epochs and "
        f"{position.batch} steps); `{resume} --detect-anomaly` "
        "resumes from it and names the operation that fails."
    )


PACKAGES = ("tailshift", "torch", "torchvision", "timm", "lightning-fabric", "numpy")


def describe_environment() -> dict[str, object]:
    """Return versions, commit, hardware, command and time for environment.json."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "hardware": hardware(),
    }


def hardware() -> str:
    """Return the CPU, and the GPUs if there are any, in one line."""
    cores = f"{os.cpu_count()} cores, {_processor()}"
    if not torch.cuda.is_available():
        return cores
    names = [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    return f"{', '.join(names)}; {cores}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def source_commit() -> str | None:
    """Return the commit of this package's checkout, with ``+`` after local changes."""
    try:
        # Fails if the package is installed inside another project's checkout.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        commit = _git("rev-parse", "--short=12", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "..")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+" if changes else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
