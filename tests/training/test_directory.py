"""No run and no stranger's file is lost to a new run."""

from pathlib import Path

import pytest

import tailshift as ts
from tailshift.training.directory import default_directory


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_default_directory__names_recipe_method_and_seed() -> None:
    config = ts.load_recipe("digits_lt", ["method.name=lade", "seed=3"])
    assert default_directory(config) == Path("runs/digits_lt/lade-seed3")


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
            f"`output` {tmp_path} exists and is not a run directory, so that nothing "
            "in it is replaced. Name another folder (--output)."
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
        ts.train(ts.load(run_copy).config, output=run_copy)
    assert str(error.value) == (
        f"`output` {run_copy} exists. Go on with it (--resume), replace it "
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
    with pytest.raises(ValueError, match="begun") as error:
        ts.train(config, output=run_copy, resume=True)
    assert str(error.value) == (
        f"{run_copy} was begun with train.epochs = 2, but --resume asks for 5. Resume "
        "with the settings it was begun with, or name another folder (--output)."
    )
    assert _contents(run_copy) == before


def test_train__resume_under_another_method(run_copy: Path) -> None:
    config = ts.load_recipe("digits_lt", ["train.epochs=2"])
    with pytest.raises(ValueError, match="begun") as error:
        ts.train(config, output=run_copy, resume=True)
    assert str(error.value) == (
        f"{run_copy} was begun with method.name = 'lade', but --resume asks for "
        "'softmax'. Resume with the settings it was begun with, or name another "
        "folder (--output)."
    )


def test_train__resume_with_a_damaged_config(run_copy: Path) -> None:
    path = run_copy / "config.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 0'))
    with pytest.raises(ValueError, match="damaged") as error:
        ts.train(ts.load_recipe("digits_lt"), output=run_copy, resume=True)
    assert str(error.value) == (
        f"{path} is damaged: `train.epochs` must be greater than 0, but is 0."
    )


def test_train__takes_an_empty_folder_and_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("größe [b]").mkdir()
    run = ts.train(ts.load_recipe("digits_lt", ["train.epochs=1"]), output="größe [b]")
    assert run.is_finished
    assert run.directory == Path("größe [b]")
    assert (tmp_path / "größe [b]" / "weights.safetensors").is_file()
