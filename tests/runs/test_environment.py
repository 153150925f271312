"""What a run is recorded to have run on."""

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tailshift.runs import directory
from tailshift.runs.directory import describe_environment, source_commit


def test_describe_environment__is_complete_and_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["/some/bin/tailshift", "train", "a recipe.toml"])
    described = json.loads(json.dumps(describe_environment()))
    assert list(described) == [
        "started",
        "command",
        "commit",
        "python",
        "packages",
        "hardware",
    ]
    assert described["command"] == "tailshift train 'a recipe.toml'"
    assert described["packages"]["torch"] == version("torch")
    assert f"{os.cpu_count()} cores" in described["hardware"]


def test_source_commit__without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert source_commit() is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_source_commit__only_of_its_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed inside somebody's project, the project's commit is not ours."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    package = tmp_path / "venv" / "tailshift" / "training"
    package.mkdir(parents=True)
    source = package / "directory.py"
    source.touch()
    monkeypatch.setattr(directory, "__file__", str(source))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    assert source_commit() is None
    git("add", ".")
    git("commit", "-q", "-m", "ours")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert source_commit() == commit
    source.write_text("changed")
    assert source_commit() == f"{commit}+"
