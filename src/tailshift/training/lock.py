"""One process at a time trains in a run directory."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"

_held: set[int] = set()  # descriptors that a forked worker must not keep open


@contextmanager
def hold_lock(directory: Path) -> Iterator[None]:
    """Hold a folder's lock file while the block runs.

    The system lets go of the lock when the process ends, however it ends, so that a
    lock file that was left behind blocks nobody. Where the file system knows no locks,
    nothing is held.

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
    """Return the descriptor of the locked file, once the path names that very file."""
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
        except OSError:  # no locks here
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                _write_owner(descriptor)
                return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile


def _write_owner(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # only for the message; the disk may be full
        os.ftruncate(descriptor, 0)
        owner = f"{os.getpid()} on {socket.gethostname()}"
        os.pwrite(descriptor, owner.encode(), 0)


def _let_go_in_child() -> None:
    """Close what a fork has copied, or a worker would hold the lock for its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
