"""Plugins: code from outside the package, loaded only if the user says so."""

import hashlib
import itertools
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tailshift as ts
from tailshift import registry
from tailshift.data import DATASETS
from tailshift.methods import METHODS
from tailshift.registry import Origin
from tailshift.runs.files import resume_command
from tailshift.storage import read_json, write_json
from tailshift.training.progress import TrainingProgress

Command = Callable[..., Any]
EXAMPLE = Path(__file__).parents[1] / "examples" / "my_method.py"
NEW = """
from tailshift.data import DATASETS, DigitsLT
from tailshift.methods import METHODS, Softmax

@METHODS.register("{name}")
class Mine(Softmax):
    '''Softmax again.'''
    title = "Mine"
"""
TRAP = "from pathlib import Path\nPath('sprung').touch()\n"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the registries as they were."""
    monkeypatch.setattr(registry, "_origins", dict(registry._origins))
    modules, entries = set(sys.modules), {k: k.names() for k in registry._registries}
    yield
    for module in set(sys.modules) - modules:
        if module.startswith("tailshift_plugin_") or "plugged" in module:
            registry._forget(module)
    assert {kind: kind.names() for kind in entries} == entries


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a distribution of one module, with its entry point."""

    def install(name: str, source: str) -> None:
        folder = tmp_path / "site"
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text(
            f"[tailshift.plugins]\n{name} = {name}\n"
        )
        (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(registry, "_has_looked", False)

    return install


def _interrupted_after(steps: int) -> Callable[..., None]:
    left = itertools.count(steps - 1, -1)

    def step(*args: Any) -> None:
        if next(left) == 0:
            signal.raise_signal(signal.SIGINT)

    return step


def test_example__is_a_method_like_any_other(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained, interrupted, resumed, evaluated, listed and reported by commands."""
    plugin = ("--plugin", EXAMPLE)
    command = ("train", "digits_lt", *plugin, "--method", "vector_scaling")
    command += ("--set", "train.epochs=2")
    assert tailshift(*command, "--output", "whole").code == 0
    with monkeypatch.context() as patched:
        patched.setattr(TrainingProgress, "step", _interrupted_after(7))
        result = tailshift(*command, "--output", "run")
    resume = f"tailshift train --resume --output run --plugin {EXAMPLE}"
    assert result.code == 130
    assert result.out == f"interrupted after 1 epochs; resume with {resume}\n"
    assert tailshift(*shlex.split(resume)[1:]).code == 0
    weights, expected = (
        load_file(f"{r}/weights.safetensors") for r in ("run", "whole")
    )
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    run = ts.load_run("run")
    assert len({record.target for record in ts.evaluate(run.predictions())}) == 11
    assert run.facts.plugins == [
        {
            "name": str(EXAMPLE),
            "sha256": hashlib.sha256(EXAMPLE.read_bytes()).hexdigest(),
            "brings": [["method", "vector_scaling"]],
        }
    ]
    assert "backward 50" in tailshift("evaluate", "run", *plugin).out
    assert tailshift("report", "run", "-o", "page", *plugin).code == 0
    [page] = Path("page").rglob("*.html")
    assert "Vector Scaling" in page.read_text(encoding="utf-8")
    rows = tailshift("list", "methods", *plugin).out.splitlines()
    [mine] = [row for row in rows if row.startswith("vector_scaling\t")]
    assert mine.split("\t")[-1] == f"from: {EXAMPLE}"
    assert not any("from:" in row for row in rows if row != mine)
    for kind, name in (("losses", "vector_scaling"), ("heads", "learnt_cosine")):
        listed = tailshift(*plugin, "list", kind).out
        assert f"\n{name}\t" in listed


def test_run_of_a_plugin__names_it_when_it_is_not_loaded(
    tailshift: Command, tmp_path: Path
) -> None:
    """And never loads it: run.json, config.json and recipes are other people's."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(NEW.format(name="mine"))
    command = ("train", "digits_lt", "--method", "mine", "--set", "train.epochs=1")
    assert tailshift(*command, "--output", "run", "--plugin", plugin).code == 0
    config = ts.load_run("run").config
    assert resume_command(Path("run")) == (
        f"tailshift train --resume --output run --plugin {plugin}"
    )
    assert ts.evaluation.results.training_command(config) == (
        "tailshift train digits_lt --set method.name=mine --set train.epochs=1 "
        f"--plugin {plugin}"
    )
    registry._forget(METHODS._modules["mine"])
    plugin.write_text(TRAP)
    message = (
        "run was trained with method 'mine' of the plugin "
        f"{plugin}; load it with --plugin {plugin} or ts.load_plugin."
    )
    with pytest.raises(ValueError, match="plugin") as error:
        ts.load_run("run")
    assert str(error.value) == message
    for command in (
        ("evaluate", "run"),
        ("report", "run", "-o", "page"),
        ("train", "--resume", "--output", "run"),
    ):
        result = tailshift(*command)
        assert (result.code, result.err) == (2, f"error: {message}\n")
    result = tailshift("train", "digits_lt", "--output", "run")
    assert result.err == (
        "error: `output` run exists. Resume it (--resume), replace it (--force) or "
        "name another folder (--output).\n"
    )
    assert not Path("sprung").exists()


def test_installed_plugin_of_a_run__is_to_be_installed(run_copy: Path) -> None:
    facts = read_json(run_copy / "run.json")
    brought = {"name": "tiny", "version": "1.2", "brings": [["method", "gone"]]}
    write_json(run_copy / "run.json", facts | {"plugins": [brought]})
    assert ts.load_run(run_copy).is_finished  # its method is known by another way
    config = read_json(run_copy / "config.json")
    config["method"] = {"name": "gone"}
    write_json(run_copy / "config.json", config)
    with pytest.raises(ValueError, match="plugin") as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{run_copy} was trained with method 'gone' of the plugin tiny; install it."
    )
    assert "--plugin" not in resume_command(run_copy)


@pytest.mark.parametrize("plugins", [5, "mine.py", [5], [{"name": 5}], {"name": "x"}])
def test_recorded_plugins__damaged_ones_are_passed_over(
    run_copy: Path, plugins: object
) -> None:
    facts = read_json(run_copy / "run.json")
    write_json(run_copy / "run.json", facts | {"plugins": plugins})
    assert ts.load_run(run_copy).is_finished
    assert "--plugin" not in resume_command(run_copy)


@pytest.mark.parametrize("key", ["plugin", "plugins"])
def test_recipe__that_names_a_plugin_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trap.py").write_text(TRAP)
    Path("theirs.toml").write_text(
        f'base = "digits_lt"\n{key} = "trap.py"\n[method]\nname = "trap"\n'
    )
    with pytest.raises(ValueError, match="plugin"):
        ts.load_recipe("theirs.toml")
    assert not Path("sprung").exists()


def test_entry_point__is_loaded_when_a_name_is_not_ours(
    install: Callable[..., None], tailshift: Command
) -> None:
    install("plugged_tiny", NEW.format(name="tiny"))
    assert "lade" in METHODS
    assert "plugged_tiny" not in sys.modules  # our own names cost nothing
    assert METHODS.get("tiny").title == "Mine"
    assert METHODS.origin("tiny") == Origin("plugged_tiny", version="1.2")
    rows = tailshift("list", "methods").out.splitlines()
    assert [row.split("\t")[-1] for row in rows if row.startswith("tiny\t")] == [
        "from: plugged_tiny 1.2"
    ]
    command = ("train", "digits_lt", "--method", "tiny", "--set", "train.epochs=1")
    assert tailshift(*command, "--output", "run").code == 0
    assert ts.load_run("run").facts.plugins == [
        {"name": "plugged_tiny", "version": "1.2", "brings": [["method", "tiny"]]}
    ]
    assert resume_command(Path("run")) == "tailshift train --resume --output run"


def test_entry_point__broken_is_a_warning(install: Callable[..., None]) -> None:
    install("plugged_broken", "import no_such_module")
    with pytest.warns(UserWarning, match="plugged_broken") as caught:
        names = METHODS.names()
    assert "lade" in names
    assert [str(warning.message) for warning in caught] == [
        "the plugin plugged_broken 1.2 cannot be loaded (ModuleNotFoundError: No "
        "module named 'no_such_module'); what it brings is missing."
    ]
    assert METHODS.names() == names  # told once


def test_entry_point__may_look_names_up_while_it_is_loaded(
    install: Callable[..., None],
) -> None:
    source = "\nassert METHODS.names()\nassert 'nothing' not in METHODS\n"
    install("plugged_curious", NEW.format(name="curious") + source)
    assert "curious" in METHODS


def test_load_plugin__again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NEW.format(name="mine"))
    first = ts.load_plugin(path)
    assert ts.load_plugin(str(path)) is first
    path.write_text(NEW.format(name="other"))
    assert ts.load_plugin(path) is not first
    assert "mine" not in METHODS
    assert "other" in METHODS


def test_load_plugin__same_file_name_in_two_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        path = tmp_path / name / "my-method.v2.py"
        path.parent.mkdir()
        path.write_text(NEW.format(name=name))
        ts.load_plugin(path)
    assert {"one", "two"} <= set(METHODS)


def test_load_plugin__leaves_nothing_of_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NEW.format(name="mine") + NEW.format(name="lade"))
    with pytest.raises(ImportError) as error:
        ts.load_plugin(path)
    assert str(error.value) == (
        f"the plugin {path} cannot be loaded (ValueError: method 'lade' is already "
        "registered by tailshift. Choose another name.)."
    )
    assert "mine" not in METHODS
    path.write_text(NEW.format(name="mine"))
    ts.load_plugin(path)
    assert "mine" in METHODS


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("raise KeyError('one\\ntwo')", r"KeyError: 'one\ntwo'"),
        ("raise OSError('one\\n two')", "OSError: one two"),
        ("raise OSError('9' * 5000)", f"OSError: {'9' * 491}…"),
    ],
)
def test_load_plugin__fails_in_one_line(
    source: str, reason: str, tmp_path: Path, tailshift: Command
) -> None:
    (tmp_path / "mine.py").write_text(source)
    result = tailshift("list", "methods", "--plugin", "mine.py")
    assert (result.code, result.err) == (
        2,
        f"error: the plugin mine.py cannot be loaded ({reason}).\n",
    )


@pytest.mark.parametrize("name", ["nothing.py", "folder", "notes.txt"])
def test_load_plugin__is_no_python_file(
    name: str, tmp_path: Path, tailshift: Command
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").touch()
    result = tailshift("list", "methods", "--plugin", name)
    assert (result.code, result.err) == (
        2,
        f"error: `plugin` must be a Python file (.py), but {name} is none.\n",
    )


DATA = """
from dataclasses import dataclass, replace
from pathlib import Path

from tailshift.data import DATASETS, SAMPLERS, Dataset, DigitsLT, Sampler
from tailshift.storage import read_json, write_json

@DATASETS.register("two_digits")
@dataclass(frozen=True)
class TwoDigits(Dataset):
    '''Zeros and ones.'''

    def load(self, *, root, seed):
        digits = DigitsLT().load(root=root, seed=seed)
        parts = {
            name: getattr(digits, name).subset(getattr(digits, name).labels < 2)
            for name in ("train", "val", "test")
        }
        return replace(digits, name=self.name, class_names=("0", "1"), **parts)

@SAMPLERS.register("squared")
@Sampler
def squared(counts, progress):
    '''Classes by the square of their count.'''
    return counts**2
"""


def test_data_set_and_sampler_of_a_plugin__work_everywhere(
    tailshift: Command, tmp_path: Path, write_image: Callable[..., Path]
) -> None:
    """Trained on, checked, listed, and answered from for images that are files."""
    (tmp_path / "data.py").write_text(DATA)
    plugin = ("--plugin", "data.py")
    settings = ("data.name=two_digits", "train.sampler=squared", "train.epochs=1")
    options = [part for setting in settings for part in ("--set", setting)]
    result = tailshift("train", "digits_lt", *plugin, *options, "--output", "run")
    assert result.code == 0, result.err
    run = ts.load_run("run")
    assert run.class_names == ("0", "1")
    assert run.facts.plugins[0]["brings"] == [
        ["data set", "two_digits"],
        ["sampler", "squared"],
    ]
    assert tailshift("data", "check", "two_digits", *plugin).code == 0
    image = write_image(tmp_path / "image.png", size=(8, 8))
    answer = tailshift("predict", "run", image, *plugin)
    assert answer.code == 0, answer.err
    assert run.config.data.preparation(8).resized == 8
    assert DATASETS.sentence("two_digits") == "Zeros and ones."
