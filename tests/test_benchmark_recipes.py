"""The recipes of the large benchmarks, end to end on tiny JPEGs in their layouts."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift.data import DATASETS
from tailshift.data.benchmarks import ListBenchmark
from tailshift.recipes import recipe_names

Command = Callable[..., Any]
WriteBenchmark = Callable[..., Path]

RECIPES = {
    "imagenet_lt": "imagenet_lt_lade_90ep",
    "places_lt": "places_lt_lade",
    "inaturalist2018": "inaturalist2018_lade",
}
CUT_DOWN = (
    "data.check_counts=false",
    "data.image_size=32",
    "model.name=timm:test_resnet",
    "model.pretrained=false",
    "train.epochs=1",
    "train.batch_size=8",
    "train.num_workers=0",
)
COUNTS = (9, 6, 4, 3, 3, 2, 1, 1)
REMEDY = "Fetch it again, or skip such images with data.skip_broken=true."


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a benchmark: all three in turn."""
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path, write_benchmark: WriteBenchmark, name: str) -> Path:
    """Return a folder of lists and images, 29 to train on and 2 a class to test on."""
    return write_benchmark(tmp_path / "data", name, counts=COUNTS)


def _train(name: str, root: Path, *settings: str) -> list[str]:
    """Return the command line that trains a cut-down recipe."""
    pairs = [part for s in (*CUT_DOWN, *settings) for part in ("--set", s)]
    output = ["--data-root", str(root), "--output", "run"]
    return ["train", RECIPES[name], *pairs, *output]


def _list(name: str, root: Path, split: str) -> Path:
    dataset = DATASETS.get(name)
    assert issubclass(dataset, ListBenchmark)
    return root / dataset.lists[split]


def _paths(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines()]


def test_recipe__trains_and_is_evaluated(
    tailshift: Command, name: str, root: Path
) -> None:
    result = tailshift(*_train(name, root))
    assert (result.code, result.complaints) == (0, [])
    assert result.out.startswith("LADE: ")
    last = f" re-targeted to the uniform test set ({2 * len(COUNTS)} images)\nrun\n"
    assert result.out.endswith(last)
    run = ts.load_run("run")
    assert run.is_finished
    assert run.config.recipe == RECIPES[name]
    assert run.source_counts.tolist() == list(COUNTS)
    assert run.facts.image_size == 32
    assert (run.directory / "predictions" / "val.safetensors").exists() == (
        name != "inaturalist2018"
    )
    assert len(run.predictions("test").labels) == 2 * len(COUNTS)
    result = tailshift("evaluate", "run")
    assert (result.code, result.err) == (0, "")
    assert "backward 50" in result.out


LARGE = [name for name in recipe_names() if name.startswith(tuple(RECIPES))]


@pytest.mark.parametrize("recipe", LARGE)
def test_recipe__makes_a_step(
    recipe: str, tmp_path_factory: pytest.TempPathFactory, tiny_trees: dict[str, Path]
) -> None:
    """Every recipe of a large benchmark, its method's second stage made short."""
    config = ts.load_recipe(recipe, (*CUT_DOWN, "train.batch_size=29"))
    if hasattr(config.method, "epochs"):
        short = dataclasses.replace(config.method, epochs=1)
        config = config.model_copy(update={"method": short})
    output = tmp_path_factory.mktemp("steps") / "run"
    run = ts.train(config, output=output, data_root=tiny_trees[config.data_name])
    assert run.is_finished
    assert all(0 < record["loss"] < 1000 for record in run.metrics)
    assert len(ts.evaluate(run.predictions("test"), ["backward:2"])) == 2


@pytest.fixture(scope="module")
def tiny_trees(
    tmp_path_factory: pytest.TempPathFactory, write_benchmark: WriteBenchmark
) -> dict[str, Path]:
    """Return, for each benchmark, a folder of lists and images; read only."""
    root = tmp_path_factory.mktemp("trees")
    return {name: write_benchmark(root / name, name, counts=COUNTS) for name in RECIPES}


def test_places__head_learns_faster_than_the_backbone() -> None:
    """The learning rates survive the cut: they are settings of `optim`."""
    for name in RECIPES:
        optim = ts.load_recipe(RECIPES[name], CUT_DOWN).optim
        rates = (optim.backbone_lr, optim.lr)
        assert (rates == (0.001, 0.05)) == (name == "places_lt")


def test_recipe__broken_jpeg(tailshift: Command, name: str, root: Path) -> None:
    path = root / _paths(_list(name, root, "train"))[3]
    path.write_bytes(path.read_bytes()[:3])
    result = tailshift(*_train(name, root))
    assert (result.code, result.out) == (2, "")
    assert result.complaints == [
        f"error: `{path}` is not an image of a known format. {REMEDY}"
    ]


@pytest.mark.filterwarnings("always")
def test_recipe__broken_jpeg_left_out(
    tailshift: Command, name: str, root: Path
) -> None:
    path = root / _paths(_list(name, root, "train"))[3]
    path.write_text("no image")
    result = tailshift(*_train(name, root, "data.skip_broken=true"))
    assert result.code == 0
    assert result.complaints == [
        "warning: 1 of 29 images were skipped because they cannot be read, the first: "
        f"`{path}` is not an image of a known format."
    ]


def test_recipe__missing_file(tailshift: Command, name: str, root: Path) -> None:
    path = root / _paths(_list(name, root, "test"))[5]
    path.unlink()
    assert tailshift(*_train(name, root)) == (
        2,
        "",
        f"error: `{path}` is missing, one of 1 missing of the 16 images of test. "
        f"{REMEDY}\n",
    )
    assert not Path("run").exists()


def test_recipe__label_out_of_range(tailshift: Command, name: str, root: Path) -> None:
    file = _list(name, root, "test")
    lines = file.read_text().splitlines()
    lines[5] = f"{lines[5].split()[0]} 8"
    file.write_text("\n".join(lines))
    assert tailshift(*_train(name, root)) == (
        2,
        "",
        f"error: `{file}` line 6 must have a label in 0..7, but has 8.\n",
    )
    assert not Path("run").exists()


def test_recipe__empty_class(tailshift: Command, name: str, root: Path) -> None:
    file = _list(name, root, "train")
    lines = [line for line in file.read_text().splitlines() if not line.endswith(" 6")]
    file.write_text("\n".join(lines))
    assert tailshift(*_train(name, root)) == (
        2,
        "",
        f"error: `{file}` must list an image of every class in 0..7, but has none of "
        "class 6.\n",
    )
    assert not Path("run").exists()


def test_recipe__duplicate_path(tailshift: Command, name: str, root: Path) -> None:
    file = _list(name, root, "train")
    first = file.read_text().splitlines()[0]
    file.write_text(f"{file.read_text()}{first}\n")
    assert tailshift(*_train(name, root)) == (
        2,
        "",
        f"error: `{file}` line 30 names {first.split()[0]} again, which stands in line "
        "1. Remove one of the two.\n",
    )
    assert not Path("run").exists()


def test_recipe__no_data_root(
    tailshift: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAILSHIFT_DATA", raising=False)
    assert tailshift(
        "train", RECIPES[name], "--set", "model.name=timm:test_resnet"
    ) == (
        2,
        "",
        "error: `root` must name the folder of the data, but is None and the "
        "environment variable TAILSHIFT_DATA is not set. Set it, or pass --data-root "
        "DIR.\n",
    )
    assert not Path("runs").exists()
