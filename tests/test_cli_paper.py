"""The commands of the paper's experiments: reproduce, tune and data check."""

import csv
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tailshift as ts
from tailshift.data import DataShape
from tailshift.paper import tune as tune_module
from tailshift.paper.numbers import paper_table
from tailshift.recipes import recipe_names
from tailshift.runs.directory import begin_directory, flat_settings

Command = Callable[..., Any]
WriteImage = Callable[..., Path]

DIGITS = ("data.name=digits_lt", "model.name=digits_net", "train.epochs=1")
TUNE = ("tune", "digits_lt", "--set", "method.name=lade", "--set", "train.epochs=1")
GRID = ("--alphas", "1,0.1", "--lams", "0.5", "-o", "search")


KEPT = [f"inaturalist2018_{name}" for name in ("balanced_softmax", "softmax", "lade")]


@pytest.fixture(autouse=True)
def _three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Table 5 the recipes of three rows."""
    known = [
        name
        for name in recipe_names()
        if name in KEPT or "lade" in name or not name.startswith("inaturalist2018")
    ]
    monkeypatch.setattr("tailshift.paper.reproduce.recipe_names", lambda: known)


def _set(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.mark.parametrize(
    ("command", "example"),
    [
        (("reproduce",), "tailshift reproduce table2 --quick --dry-run"),
        (("tune",), "tailshift tune digits_lt --set method.name=lade -o search"),
        (("data",), "tailshift data check digits_lt"),
        (("data", "check"), "tailshift data check digits_lt"),
    ],
)
def test_help__ends_with_an_example(
    tailshift: Command, command: tuple[str, ...], example: str
) -> None:
    result = tailshift(*command, "--help")
    assert result.code == 0
    assert result.out.rstrip().splitlines()[-1] == f"  Example: {example}"


@pytest.fixture
def half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step take half a second, without a measurement."""
    name = "tailshift.paper.duration.seconds_per_step"
    monkeypatch.setattr(name, lambda config, shape: 0.5)


@pytest.mark.usefixtures("half_a_second")
def test_reproduce__dry_run_says_what_it_would_train(tailshift: Command) -> None:
    result = tailshift("reproduce", "table2", "--quick", "--dry-run", "--time")
    assert result.code == 0
    first, *timed = result.err.splitlines()
    assert first == (
        "note: cifar100_lt cannot be trained on: name its folder with --data-root."
    )
    assert "timing one step of cifar100_lt_ir100_lade_quick" in timed
    assert all(line.startswith("timing one step of cifar100_lt_ir") for line in timed)
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    # 30 epochs of ⌈10,847 / 64⌉ = 170 steps: 5,100, or 42 min 30 s
    for method in ("softmax", "balanced_softmax", "lade"):
        recipe = f"cifar100_lt_ir100_{method}_quick"
        assert f"{recipe} 0 5,100 500 42 min 30 s" in lines
    num_runs = sum(line.startswith("cifar100_lt_ir") for line in lines)
    assert num_runs >= 9
    assert any(line.startswith(f"{num_runs} runs ") for line in lines)
    assert "Table 2" in result.out
    assert "45.4" in result.out  # the paper's LADE at ratio 100
    assert result.out.index("45.4") < result.out.index("42 min 30 s")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("number", [3, 4, 5, 6, 11])
def test_reproduce__dry_run_times_no_step_unless_asked(
    tailshift: Command, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: ts.RunConfig, shape: DataShape) -> float:
        raise AssertionError("a step is timed")

    monkeypatch.setattr("tailshift.paper.duration.seconds_per_step", fail)
    result = tailshift("reproduce", f"table{number}", "--dry-run")
    assert result.code == 0
    assert f"Table {number}: " in result.out
    last = result.err.splitlines()[-1]
    assert last.endswith(
        " missing. `--commands` prints how to train them, `--dry-run --time` estimates "
        "the time."
    )


def test_reproduce__time_without_dry_run(tailshift: Command) -> None:
    result = tailshift("reproduce", "table2", "--time")
    assert result.code == 2
    assert result.err == "error: `--time` needs `--dry-run`. Add `--dry-run`.\n"


@pytest.mark.usefixtures("half_a_second")
def test_reproduce__dry_run_names_missing_data(tailshift: Command) -> None:
    """One sentence a data set, with the folder; none for data that are there."""
    command = ("reproduce", "table8", "--dry-run", "--data-root", "here")
    notes = [line for line in tailshift(*command).err.splitlines() if "note" in line]
    assert notes[0] == (
        "note: cifar100_lt is not in `here/cifar-100-python`: training downloads it "
        "there first. If it is elsewhere, name the folder around it with --data-root."
    )
    assert (
        "note: inaturalist2018 needs the public list iNaturalist18_train.txt, but it "
        "is in none of `here`, `here/lists`, `here/inaturalist2018`. Put it there, or "
        "name another folder with --data-root."
    ) in notes
    Path("here/cifar-100-python").mkdir(parents=True)
    for name in ("train", "val"):
        Path(f"here/iNaturalist18_{name}.txt").touch()
    left = tailshift(*command).err
    assert "inaturalist2018 needs" not in left
    assert "cifar100_lt is not" not in left


@pytest.mark.usefixtures("half_a_second")
def test_reproduce__kept_logits_in_every_form(
    tailshift: Command, digits_run: ts.Run
) -> None:
    """Table 9 with logits of one method, kept beforehand; nothing is trained."""
    Path("kept").mkdir()
    name = "cifar100_lt_ir50_lade_quick-official-seed0.safetensors"
    digits_run.predictions("test").save(Path("kept") / name)
    result = tailshift(
        *("reproduce", "table9", "--quick", "--seeds", "0", "--logits", "kept"),
        *("--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex", "--dry-run"),
    )
    assert result.code == 0
    assert "cifar100_lt_ir50_lade_quick" not in result.out
    [record] = [
        record
        for record in ts.evaluate(digits_run.predictions("test"), ["backward:50"])
        if record.compensated
    ]
    ours = f"{100 * record.accuracy:.1f}"
    for path in ("t.csv", "t.md", "t.tex"):
        assert ours in Path(path).read_text(encoding="utf-8")
        assert "49.4" in Path(path).read_text(encoding="utf-8")
    assert ours in result.out


@pytest.mark.usefixtures("half_a_second")
def test_reproduce__dry_run_of_all_seeds(tailshift: Command) -> None:
    command = ("reproduce", "table8", "--dry-run", "--time")
    result = tailshift(*command, "--seeds", "0,1")
    assert result.code == 0
    assert "36 runs" in result.out
    for recipe in ("cifar100_lt_ir10_lade_lambda0", "inaturalist2018_balanced_softmax"):
        assert recipe in result.out
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("number", [1, 7])
def test_reproduce__facts_need_no_runs(tailshift: Command, number: int) -> None:
    result = tailshift("reproduce", f"table{number}", "--csv", "table.csv")
    assert (result.code, result.err) == (0, "")
    table = paper_table(number)
    assert f"Table {number}: {table.title}" in " ".join(result.out.split())
    for cell in table.numbers:
        assert cell.row.split(",")[0] in result.out
    with Path("table.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 18
    assert [path.name for path in Path().iterdir()] == ["table.csv"]


def test_reproduce__prints_commands_for_what_is_missing(tailshift: Command) -> None:
    """The first run was begun, so that it is resumed."""
    command = ("reproduce", "table5", "--runs", "mine", *_set(*DIGITS), "--commands")
    first, *others = tailshift(*command).out.splitlines()
    assert len(others) == 2
    folder = "mine/inaturalist2018_balanced_softmax/balanced_softmax-seed0"
    assert first.startswith("tailshift train inaturalist2018_balanced_softmax --set ")
    assert first.endswith(f" --output {folder}")
    assert not Path("mine").exists()
    plan = ts.reproduce("table5", runs="mine", settings=DIGITS, dry_run=True)
    job = plan.missing[0]
    job.directory.mkdir(parents=True)
    begin_directory(job.directory, job.config)
    resumed, *same = tailshift(*command, "--data-root", "my data").out.splitlines()
    ending = " --data-root 'my data'"
    assert resumed == f"tailshift train --resume --output {folder}{ending}"
    assert same == [f"{line}{ending}" for line in others]
    assert tailshift(*shlex.split(first.replace(folder, "run"))[1:]).code == 0
    assert flat_settings(ts.load_run("run").config) == flat_settings(job.config)


def test_reproduce__trains_what_is_missing(tailshift: Command) -> None:
    """Table 5 on digits: three runs; the second time there is nothing to train."""
    command = ("reproduce", "table5", "--runs", "mine", *_set(*DIGITS))
    result = tailshift(*command)
    assert (result.code, result.err) == (0, "")
    recipes = [
        f"inaturalist2018_{method}"
        for method in ("balanced_softmax", "softmax", "lade")
    ]
    announced = [line for line in result.out.splitlines() if "training" in line]
    assert announced == [
        f"training {recipe} with seed 0 ({number} of 3)"
        for number, recipe in enumerate(recipes, start=1)
    ]
    assert all(ts.load_run(run).is_finished for run in Path("mine").glob("*/*"))
    again = tailshift(*command)
    assert again.out == result.out.removeprefix("\n".join(announced) + "\n")
    assert "70.0" in again.out  # the paper's LADE


def test_reproduce__goes_on_after_an_interruption(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = type("Unfinished", (), {"is_finished": False})
    monkeypatch.setattr(
        "tailshift.paper.reproduce.train", lambda config, **settings: unfinished
    )
    result = tailshift("reproduce", "table5", *_set(*DIGITS))
    assert result == (
        130,
        "training inaturalist2018_balanced_softmax with seed 0 (1 of 3)\n",
        "interrupted: run the same command again to resume.\n",
    )


def test_reproduce__says_which_data_is_missing(tailshift: Command) -> None:
    """The table is printed all the same."""
    result = tailshift("reproduce", "table5", "--data-root", "none")
    assert result.code == 2
    assert result.err == (
        "error: inaturalist2018_balanced_softmax: inaturalist2018 needs the public "
        "list iNaturalist18_train.txt, but it is in none of `none`, `none/lists`, "
        "`none/inaturalist2018`. Put it there, or name another folder with "
        "--data-root.\n"
    )
    assert "Table 5" in result.out


@pytest.mark.parametrize("table", ["table12", "tabel2", "2", ""])
def test_reproduce__unknown_table(tailshift: Command, table: str) -> None:
    assert tailshift("reproduce", table) == (
        2,
        "",
        "error: `what` must be one of table1, table2, table3, table4, table5, table6, "
        "table7, table8, table9, table10, table11, figure2, figure3, figure4, figure6, "
        f"but is {table!r}.\n",
    )


def test_tune__two_by_one(tailshift: Command) -> None:
    result = tailshift(*TUNE, *GRID)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert sum(line.startswith("training α = ") for line in lines) == 2
    run = ts.load_run(lines[-1])
    assert run.is_finished
    assert run.directory.parent == Path("search/trials")
    with Path("search/tuning.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(float(row["alpha"]), float(row["lam"])) for row in rows] == [
        (0.1, 0.5),
        (1.0, 0.5),
    ]
    assert Path("search/tuning.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_tune__goes_on_after_an_interruption(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, begun = tune_module.train, []

    def interrupted_the_second_time(config: ts.RunConfig, **settings: Any) -> ts.Run:
        begun.append(config.method)
        if len(begun) == 2:
            raise KeyboardInterrupt(tune_module.INTERRUPTED)
        return train(config, **settings)

    monkeypatch.setattr(tune_module, "train", interrupted_the_second_time)
    result = tailshift(*TUNE, *GRID)
    assert result.code == 130
    assert result.err == ("interrupted: run the same command again to resume.\n")
    assert not Path("search/tuning.csv").exists()
    result = tailshift(*TUNE, *GRID)
    assert (result.code, result.err) == (0, "")
    assert len(begun) == 3
    assert begun[2] == begun[1] != begun[0]
    assert len(Path("search/tuning.csv").read_text().splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["tune", "digits_lt", "-o", "search"],
            "`recipe` must train LADE, but digits_lt trains Softmax. Set "
            "method.name=lade.",
        ),
        (
            [*TUNE, "-o", "search", "--alphas", "0.1;1"],
            "`--alphas` must be like 0.01,0.1, but is '0.1;1'.",
        ),
        (
            [*TUNE, "-o", "search", "--lams", "x"],
            "`--lams` must be like 0.01,0.1, but is 'x'.",
        ),
        (
            [*TUNE, "-o", "search", "--lams", "0.1,-1"],
            "`lams` must be one or more finite numbers >= 0, but is [0.1, -1.0].",
        ),
    ],
)
def test_tune__bad_input(
    tailshift: Command, arguments: list[str], sentence: str
) -> None:
    assert tailshift(*arguments) == (2, "", f"error: {sentence}\n")
    assert list(Path().iterdir()) == []


def test_data_check__digits(tailshift: Command) -> None:
    result = tailshift("data", "check", "digits_lt")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:-1] == [
        "digits_lt: 10 classes (0, 1, 2, 3, 4, …)",
        "train: 276 images, 2 to 100 a class",
        "val: 55 images, 1 to 20 a class",
        "test: 500 images, 50 to 50 a class",
    ]
    assert lines[-1].startswith("fingerprint of the training split: ")


PREPARED = (
    "a network trained from scratch sees: resized to 32 × 32 pixels; in training "
    "shifted by up to 4, not mirrored"
)


def _folder(write_image: WriteImage) -> Path:
    for name, count in (("cat", 20), ("[red]dog", 10)):
        for i in range(count):
            write_image(Path("images") / name / f"{i}.jpg", seed=i)
    return Path("images")


def test_data_check__a_sound_folder(
    tailshift: Command, write_image: WriteImage
) -> None:
    result = tailshift("data", "check", f"folder:{_folder(write_image)}")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[:6] == [
        "folder: 2 classes ([red]dog, cat)",
        "train: 21 images, 7 to 14 a class, 21 decoded",
        "val: 3 images, 1 to 2 a class, 3 decoded",
        "test: 6 images, 2 to 4 a class, 6 decoded",
        "sizes: 40 × 32 pixels; modes: 30 RGB",
        PREPARED,
    ]


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_data_check__broken_images(
    tailshift: Command, write_image: WriteImage, options: list[str]
) -> None:
    broken = _folder(write_image) / "[red]dog" / "3.jpg"
    broken.write_bytes(b"\xff\xd8\xff")
    result = tailshift("data", "check", "folder:images", *options)
    assert result.code == 2
    assert result.out.startswith("folder: 2 classes ([red]dog, cat)\ntrain: 21 images")
    assert result.err == f"error: `{broken}` is not an image of a known format.\n"


def test_data_check__a_benchmark_that_is_not_there(tailshift: Command) -> None:
    assert tailshift("data", "check", "places_lt", "--data-root", "data") == (
        2,
        "",
        "error: places_lt needs the public list Places_LT_train.txt, but it is in none "
        "of `data`, `data/lists`, `data/places_lt`. Put it there, or name another "
        "folder with --data-root.\n",
    )


def test_data_check__takes_settings(
    tailshift: Command, write_image: WriteImage
) -> None:
    name = f"folder:{_folder(write_image)}"
    settings = _set("data.test_fraction=0.5", "data.val_fraction=0")
    result = tailshift("data", "check", name, *settings)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[:5] == [
        "folder: 2 classes ([red]dog, cat)",
        "train: 15 images, 5 to 10 a class, 15 decoded",
        "test: 15 images, 5 to 10 a class, 15 decoded",
        "sizes: 40 × 32 pixels; modes: 30 RGB",
        PREPARED,
    ]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "data.imag_size=32",
            "`data.imag_size` is not a setting of `data`; did you mean 'image_size'? "
            "Known: augment, cutout, flip, image_size, jitter, path, skip_broken, "
            "split_seed, test_fraction, val_fraction",
        ),
        (
            "data.image_size=big",
            "`data.image_size` must be a valid integer, but is 'big'.",
        ),
        ("data.jitter=2", "`jitter` must be in [0, 1], but is 2."),
        ("data.jitter", "`--set` takes KEY=VALUE, but got 'data.jitter'."),
    ],
)
def test_data_check__refuses_settings_as_training_does(
    tailshift: Command, setting: str, sentence: str
) -> None:
    refused = (2, "", f"error: {sentence}\n")
    assert tailshift("data", "check", "folder:x", "--set", setting) == refused
    assert tailshift("train", "--data", "folder:x", "--set", setting) == refused


@pytest.mark.parametrize("setting", ["train.epochs=3", "data=3", "seed=1"])
def test_data_check__refuses_settings_of_other_things(
    tailshift: Command, setting: str
) -> None:
    assert tailshift("data", "check", "digits_lt", "--set", setting) == (
        2,
        "",
        f"error: `--set` must be data.KEY=VALUE here, but is '{setting}'.\n",
    )


@pytest.mark.parametrize("command", [("train", "--data"), ("data", "check")])
def test_data__a_path_alone(tailshift: Command, command: tuple[str, ...]) -> None:
    Path("photos.csv").touch()
    assert tailshift(*command, "./photos.csv") == (
        2,
        "",
        "error: `--data ./photos.csv` has no type. Did you mean `--data "
        "csv:./photos.csv`?\n",
    )


def test_data_check__unknown_name(tailshift: Command) -> None:
    result = tailshift("data", "check", "digit_lt")
    assert result.code == 2
    assert result.err.startswith(
        "error: unknown data set 'digit_lt'; did you mean 'digits_lt'? Known: "
    )


def test_list_recipes__tells_what_they_cost(tailshift: Command) -> None:
    result = tailshift("list", "recipes")
    costs = {
        name: cost
        for name, _, cost, _ in (line.split("\t") for line in result.out.splitlines())
    }
    assert costs["cifar100_lt_ir100_lade"] == "200 epochs × 10,847 images"
    assert costs["cifar100_lt_ir10_softmax_quick"] == "30 epochs × 19,573 images"
    assert costs["imagenet_lt_lade_90ep"] == "90 epochs × 115,846 images"
    assert costs["places_lt_softmax"] == "30 epochs × 62,500 images"
    assert costs["inaturalist2018_lade"] == "200 epochs × 437,513 images"
    assert costs["digits_lt"] == "40 epochs"
    assert costs["own_images"] == "30 epochs"


def test_list_recipes__says_the_command(tailshift: Command) -> None:
    lines = tailshift("list", "recipes").out.splitlines()
    commands = {name: command for name, *_, command in (x.split("\t") for x in lines)}
    assert commands["digits_lt"] == "tailshift train digits_lt"
    assert commands["own_images"] == "tailshift train own_images --data folder:PATH"
    assert set(commands) == set(recipe_names())
    for name in set(commands) - {"digits_lt", "own_images"}:
        assert commands[name] == f"tailshift train {name} --data-root DIR"


def test_reproduce__control_characters_in_an_error(tailshift: Command) -> None:
    result = tailshift("reproduce", "table5", "--data-root", "here\x1b[31m")
    assert result.code == 2
    assert "in none of `here\\x1b[31m`, " in result.err
    assert "\x1b" not in result.err


def test_list_recipes__fits_a_narrow_terminal(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("tailshift.cli.list.console", console)
    lines = tailshift("list", "recipes").out.splitlines()
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if " places_lt_lade " in line)
    assert lines[at].split()[1] == "Places-LT,"
    assert lines[at + 1].startswith("    30 epochs × 62,500 images ")
