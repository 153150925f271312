"""What a run ran on: versions, commit, machine and command."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("tailshift", "torch", "torchvision", "timm", "lightning-fabric", "numpy")


def describe_environment() -> dict[str, object]:
    """Return versions, commit, hardware, command and time, ready for JSON."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "hardware": hardware(),
    }


def hardware() -> str:
    """Return the processor, and the GPUs if there are any, in one line."""
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
    """Return the commit of this package's checkout, with ``+`` if it was changed."""
    try:
        # Fails if the package is installed inside somebody else's checkout.
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
