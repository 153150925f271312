"""No run and no stranger's file is lost to a new run."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import tailshift as ts
from tailshift.runs import directory
from tailshift.runs.checkpoint import CheckpointWarning, data_mark
from tailshift.runs.directory import (
    NotFiniteError,
    TrainingPosition,
    begin_directory,
    check_directory,
    default_directory,
    describe_environment,
    hold_lock,
    source_commit,
)
from tailshift.storage import read_json, write_json
from tailshift.training.recorder import Recorder


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_default_directory__names_recipe_method_and_seed() -> None:
    config = ts.load_recipe("digits_lt", ["method.name=lade", "seed=3"])
    assert default_directory(config) == Path("runs/digits_lt/lade-seed3")


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc", "..", ".x", "", "a/b", "a\\b", "C:x", "a\nb", "a\0", "a\x9b1m"],
)
def test_default_directory__leads_nowhere_else(name: str) -> None:
    config = ts.load_recipe("digits_lt").model_copy(update={"recipe": name})
    with pytest.raises(ValueError, match="file name") as error:
        default_directory(config)
    assert str(error.value) == (
        "`recipe` must be a file name, without slashes, colons, control characters or "
        f"a dot in front, but is {name!r}. Rename it."
    )


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["thesis.txt", "config.json"])
def test_train__never_touches_a_folder_that_is_no_run(
    tmp_path: Path, name: str, force: bool, resume: bool
) -> None:
    """Many a project has a config.json; that alone makes no run directory."""
    (tmp_path / name).write_text('{"years": 4}')
    before = _contents(tmp_path)
    with pytest.raises((FileExistsError, ValueError)) as error:
        ts.train(
            ts.load_recipe("digits_lt"), output=tmp_path, force=force, resume=resume
        )
    if not (resume and name == "config.json"):
        assert str(error.value) == (
            f"`output` {tmp_path} exists and is not a run directory, so nothing in it "
            "is replaced. Name another folder (--output)."
        )
    assert _contents(tmp_path) == before


def test_train__output_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("mine")
    with pytest.raises(NotADirectoryError) as error:
        ts.train(ts.load_recipe("digits_lt"), output=path, force=True)
    assert str(error.value) == (
        f"`output` must be a folder, but {path} is a file. "
        "Name another folder (--output)."
    )
    assert path.read_text() == "mine"


def test_train__refuses_to_replace_a_run(run_copy: Path) -> None:
    before = _contents(run_copy)
    with pytest.raises(FileExistsError) as error:
        ts.train(ts.load_run(run_copy).config, output=run_copy)
    assert str(error.value) == (
        f"`output` {run_copy} exists. Resume it (--resume), replace it "
        "(--force) or name another folder (--output)."
    )
    assert _contents(run_copy) == before


def test_train__force_replaces_a_run_but_not_other_files(run_copy: Path) -> None:
    (run_copy / "notes.txt").write_text("mine")
    config = ts.load_recipe("digits_lt", ["train.epochs=1", "seed=1"])
    run = ts.train(config, output=run_copy, force=True)
    assert run.config.seed == 1
    assert len(run.metrics) == 1
    assert (run_copy / "notes.txt").read_text() == "mine"


def test_train__force_keeps_the_old_run_if_the_new_one_cannot_begin(
    run_copy: Path, tmp_path: Path
) -> None:
    before = _contents(run_copy)
    cifar = ts.load_recipe("cifar100_lt_ir100_lade")
    with pytest.raises(FileNotFoundError):
        ts.train(cifar, output=run_copy, data_root=tmp_path / "no data", force=True)
    assert _contents(run_copy) == before
    with pytest.raises(FileNotFoundError):
        ts.train(cifar, output=tmp_path / "new", data_root=tmp_path / "no data")
    assert not (tmp_path / "new").exists()


def test_train__resume_under_other_settings(run_copy: Path) -> None:
    before = _contents(run_copy)
    config = ts.load_recipe("digits_lt", ["method.name=lade", "train.epochs=5"])
    with pytest.raises(ValueError, match="started") as error:
        ts.train(config, output=run_copy, resume=True)
    assert str(error.value) == (
        f"{run_copy} was started with train.epochs = 2, but --resume asks for 5. "
        "Resume with the settings it was started with, or name another folder "
        "(--output)."
    )
    assert _contents(run_copy) == before


def test_train__resume_under_another_method(run_copy: Path) -> None:
    config = ts.load_recipe("digits_lt", ["train.epochs=2"])
    with pytest.raises(ValueError, match="started") as error:
        ts.train(config, output=run_copy, resume=True)
    assert str(error.value) == (
        f"{run_copy} was started with method.name = 'lade', but --resume asks for "
        "'softmax'. Resume with the settings it was started with, or name another "
        "folder (--output)."
    )


def test_train__resume_with_a_damaged_config(run_copy: Path) -> None:
    path = run_copy / "config.json"
    content = read_json(path)
    content["train"]["epochs"] = 0
    write_json(path, content)
    with pytest.raises(ValueError, match="damaged") as error:
        ts.train(ts.load_recipe("digits_lt"), output=run_copy, resume=True)
    assert str(error.value) == (
        f"{path} is damaged: `train.epochs` must be greater than 0, but is 0."
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "key"),
    [
        ("config.json", '"lr": 0.05', '"lr": 0.06', "optim"),
        ("run.json", '"image_size": 8', '"image_size": 9', "image_size"),
    ],
)
def test_load__names_what_was_edited(
    run_copy: Path, name: str, old: str, new: str, key: str
) -> None:
    """Neither are predictions made with it, nor is a run resumed; --force replaces."""
    path, config = run_copy / name, ts.load_run(run_copy).config
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match="edited") as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{path} was edited after it was written: `{key}` does not fit the checksum. "
        "Undo the edit, or train the run again with --force."
    )
    if name == "config.json":
        with pytest.raises(ValueError, match="edited"):
            ts.train(config, output=run_copy, resume=True)
    check_directory(run_copy, config, resume=False, force=True)


@pytest.mark.parametrize("name", ["config.json", "run.json"])
def test_load__names_a_checksum_that_is_gone(run_copy: Path, name: str) -> None:
    path, config = run_copy / name, ts.load_run(run_copy).config
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content | {"seed": 1}))
    with pytest.raises(ValueError, match="edited") as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{path} was edited after it was written: its checksum is gone. Undo the edit, "
        "or train the run again with --force."
    )
    check_directory(run_copy, config, resume=False, force=True)


def test_train__takes_an_empty_folder_and_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("größe [b]").mkdir()
    run = ts.train(ts.load_recipe("digits_lt", ["train.epochs=1"]), output="größe [b]")
    assert run.is_finished
    assert run.directory == Path("größe [b]")
    assert (tmp_path / "größe [b]" / "weights.safetensors").is_file()


def test_train__one_process_at_a_time(run_copy: Path) -> None:
    config = ts.load_run(run_copy).config
    before = _contents(run_copy)
    with hold_lock(run_copy):
        owner = (run_copy / ".lock").read_text()
        with pytest.raises(BlockingIOError) as error:
            ts.train(config, output=run_copy, force=True)
    assert owner.startswith(f"{os.getpid()} on ")
    assert str(error.value) == (
        f"`output` {run_copy} must be free, but another process ({owner}) trains in "
        "it. Wait for its end, or name another folder (--output)."
    )
    assert _contents(run_copy) == before


def test_train__takes_over_a_lock_file_that_was_left(run_copy: Path) -> None:
    (run_copy / ".lock").write_text("4242 on another machine")
    config = ts.load_run(run_copy).config
    assert ts.train(config, output=run_copy, resume=True).is_finished
    assert not (run_copy / ".lock").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_hold_lock__a_worker_does_not_hold_it_for_its_parent(tmp_path: Path) -> None:
    """A loader's worker outlives a killed parent by some seconds."""
    script = (
        "import os, sys, time; from pathlib import Path;"
        "from tailshift.runs.directory import hold_lock\n"
        "with hold_lock(Path(sys.argv[1])):\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "    print(os.getpid(), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        try:
            with pytest.raises(BlockingIOError), hold_lock(tmp_path):
                pytest.fail("the block must not run")
            parent.kill()
            parent.wait()
            with hold_lock(tmp_path):  # though the worker still runs
                pass
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_train__begins_anew_where_it_was_killed_before_it_began(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / f".tailshift-{'0a' * 16}.tmp").mkdir()
    run = ts.train(ts.load_recipe("digits_lt", ["train.epochs=1"]), output=tmp_path)
    assert run.is_finished
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_train__resume_on_other_data(run_copy: Path) -> None:
    config = ts.load_run(run_copy).config
    data = config.data.load(root=None, seed=0)
    rows = torch.arange(len(data.train)).flip(0)
    other = dataclasses.replace(data, train=data.train.subset(rows))
    before = _contents(run_copy)
    with pytest.raises(ValueError, match="other images") as error:
        ts.train(config, output=run_copy, resume=True, data=other)
    assert str(error.value) == (
        f"{run_copy / 'checkpoint.safetensors'} was saved in training on other images "
        f"or labels (fingerprint {data_mark(data)}, but now {data_mark(other)}). "
        "Resume with the data that the run was started with, or name another folder "
        "(--output)."
    )
    assert _contents(run_copy) == before


def test_train__damaged_checkpoint_gives_way_to_the_one_before(
    run_copy: Path, digits_run: ts.Run
) -> None:
    path = run_copy / "checkpoint.safetensors"
    os.truncate(path, 5000)
    with pytest.warns(CheckpointWarning, match="The previous one is used"):
        run = ts.train(digits_run.config, output=run_copy, resume=True)
    assert torch.equal(run.predictions().logits, digits_run.predictions().logits)
    assert (run_copy / "checkpoint.damaged.safetensors").stat().st_size == 5000
    ts.train(run.config, output=run_copy, force=True)
    assert not (run_copy / "checkpoint.damaged.safetensors").exists()


def test_train__full_disk(run_copy: Path) -> None:
    """Files may not grow beyond 100 kB, as on a disk that has no more room."""
    resource = pytest.importorskip("resource")
    config = ts.load_run(run_copy).config
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    output = run_copy.parent / "new"
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot be written") as error:
            ts.train(config, output=output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value) == (
        f"{output} cannot be written to (File too large). Files saved before are "
        "intact. Free some space, then resume with "
        f"`tailshift train --resume --output {output}`."
    )
    assert not any(path.name.startswith(".") for path in output.rglob("*"))
    assert ts.train(config, output=output, resume=True).is_finished


def test_train__resume_may_change_how_but_not_what(run_copy: Path) -> None:
    changes = ("train.checkpoint_steps=3", "train.detect_anomaly=true")
    settings = ["method.name=lade", "train.epochs=2", *changes]
    config = ts.load_recipe("digits_lt", settings)
    run = ts.train(config, output=run_copy, resume=True)
    assert run.is_finished
    assert run.config.train.checkpoint_steps is None  # as it was begun


class _KilledError(Exception):
    pass


def test_begin_directory__killed_at_any_moment(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is left has the metrics of its epochs."""
    config = ts.load_run(run_copy).config
    remove, epochs = Path.unlink, []

    def remove_one(path: Path, missing_ok: bool = False) -> None:
        remove(path, missing_ok=missing_ok)
        raise _KilledError

    (run_copy / "checkpoint.previous.safetensors").write_bytes(
        (run_copy / "checkpoint.safetensors").read_bytes()
    )
    monkeypatch.setattr(Path, "unlink", remove_one)
    while (run_copy / "checkpoint.safetensors").exists():
        with pytest.raises(_KilledError):
            begin_directory(run_copy, config)
        if (run_copy / "checkpoint.safetensors").exists():
            epochs.append(len(ts.load_run(run_copy).metrics))
    assert epochs == [2]
    assert not (run_copy / "checkpoint.previous.safetensors").exists()
    assert (run_copy / "metrics.jsonl").exists()  # they go after the checkpoints


@pytest.mark.parametrize(
    ("before", "setting"),
    [
        ("write_facts", "train.keep=last"),
        ("after_step", "train.keep=last"),
        ("after_step", "train.checkpoint_steps=1"),
        ("_save_best", "train.keep=best"),
        ("save_results", "train.keep=last"),
        ("save_results", "train.keep=best"),
        ("_save_predictions", "train.keep=last"),
    ],
)
def test_train__in_a_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, setting: str
) -> None:
    """Whatever is written next does not make it anew, without the rest of the run."""
    folder, write = tmp_path / "run", getattr(Recorder, before)

    def remove(*arguments: Any) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        return write(*arguments)

    monkeypatch.setattr(Recorder, before, remove)
    config = ts.load_recipe("digits_lt", ["train.epochs=1", setting])
    with pytest.raises(FileNotFoundError) as error:
        ts.train(config, output=folder)
    assert str(error.value) == (
        f"{folder} is gone: it was removed or moved while the run trained in it. Train "
        "again, or move it back and resume with "
        f"`tailshift train --resume --output {folder}`."
    )
    assert not folder.exists()


def test_train__not_finite_in_a_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def fail(*arguments: object) -> None:
        shutil.rmtree(folder)
        raise NotFiniteError("the loss is nan", TrainingPosition(0, 1, (3,)))

    monkeypatch.setattr(Recorder, "after_step", fail)
    with pytest.raises(FloatingPointError) as error:
        ts.train(ts.load_recipe("digits_lt"), output=folder)
    assert str(error.value) == (
        "the loss is nan at step 0 (epoch 1, samples 3). Train again with a lower "
        "optim.lr. There is no checkpoint yet."
    )
    assert not folder.exists()


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
