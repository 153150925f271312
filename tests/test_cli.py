"""The command line: what it prints, what it refuses, and Ctrl-C for real."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import tailshift as ts
from tailshift.cli.app import COMMANDS as IN_ORDER
from tailshift.data import DATASETS
from tailshift.evaluation import Summary
from tailshift.evaluation.results import read_results
from tailshift.methods import METHODS
from tailshift.models import MODELS
from tailshift.recipes import recipe_names
from tailshift.report.runs import report_run, summarise_runs
from tailshift.storage import read_json, write_json

COMMANDS = ("demo", "train", "evaluate", "report", "list")
TINY = ("--set", "train.epochs=1")
TOLD = {"data:", "images:", "network:", "method:", "epoch", "about"}

Command = Callable[..., Any]


def _process(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line as a user does, in a process of its own."""
    command = [sys.executable, "-m", "tailshift", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help__ends_with_an_example(
    tailshift: Command, command: tuple[str, ...]
) -> None:
    result = tailshift(*command, "--help")
    assert result.code == 0
    last = result.out.rstrip().splitlines()[-1]
    assert last.startswith(f"  Example: tailshift {command[0] if command else ''}")


def test_version__is_the_packages(tailshift: Command) -> None:
    assert tailshift("--version") == (0, f"tailshift {ts.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("train",)])
def test_help__has_a_short_form(tailshift: Command, command: tuple[str, ...]) -> None:
    assert tailshift(*command, "-h") == tailshift(*command, "--help")


def test_help__lists_the_commands_in_the_order_of_the_work(tailshift: Command) -> None:
    text = tailshift("--help").out
    summaries = dict(re.findall(r"^  ([a-z]+)  +(.+)$", text, re.MULTILINE))
    assert tuple(summaries) == IN_ORDER
    assert max(map(len, summaries.values())) <= 55
    assert "..." not in text.partition("\nStart:")[2]


def test_completion__of_a_command() -> None:
    """As bash asks for it, once what --install-completion writes is there."""
    code = "import sys, tailshift.cli; sys.argv[0] = 'tailshift'; tailshift.cli.main()"
    asked = {"COMP_WORDS": "tailshift tr", "COMP_CWORD": "1"}
    asked["_TAILSHIFT_COMPLETE"] = "complete_bash"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "train\n", "")


def test_list__plain_when_not_a_terminal(tailshift: Command) -> None:
    for kind, names in (
        ("methods", METHODS.names()),
        ("datasets", DATASETS.names()),
        ("models", MODELS.names()),
        ("recipes", recipe_names()),
    ):
        result = tailshift("list", kind)
        assert result.code == 0
        assert result.err == ""
        assert "\x1b" not in result.out
        rows = [line.split("\t") for line in result.out.splitlines()]
        assert [row[0] for row in rows] == names
        assert all(row[1].endswith(".") for row in rows)


def test_list_methods__says_what_each_is(tailshift: Command) -> None:
    """Name, sentence, paper, carried prior, stages and cost relative to Softmax."""
    rows = [line.split("\t") for line in tailshift("list", "methods").out.splitlines()]
    of = {name: rest for name, *rest in rows}
    lade, crt = METHODS.get("lade"), METHODS.get("crt")
    assert of["lade"] == [
        lade.sentence,
        "hong2021",
        "carries: uniform",
        "trains: whole network",
        "costs: 1.0 × Softmax",
    ]
    assert of["crt"][:2] == [crt.sentence, "kang2020"]
    assert of["crt"][3] == "trains: whole network → classifier"
    assert of["bbn"][4] == "costs: 2.0 × Softmax"


def test_list__unknown_kind(tailshift: Command) -> None:
    result = tailshift("list", "metods")
    assert result.code == 2
    assert "'metods' is not one of" in result.err
    assert "Traceback" not in result.err


def test_train__evaluate__report(tailshift: Command, tmp_path: Path) -> None:
    result = tailshift(
        "train", "digits_lt", "--method", "lade", "--seeds", "0,1", *TINY
    )
    assert result.code == 0
    assert result.complaints == []
    runs = [f"runs/digits_lt/lade-seed{seed}" for seed in (0, 1)]
    lines = result.out.splitlines()
    assert lines[1::2] == runs
    assert all(line.startswith("LADE: ") for line in lines[::2])
    assert [ts.load_run(tmp_path / run).config.seed for run in runs] == [0, 1]
    assert tailshift("train", "digits_lt", "--output", "softmax", *TINY).code == 0

    result = tailshift(
        "evaluate", *runs, "softmax", "--target", "backward:10", "--csv", "t.csv"
    )
    assert (result.code, result.err) == (0, "")
    assert "backward 10" in result.out
    assert "forward" not in result.out
    header, *rows = Path("t.csv").read_text().splitlines()
    assert header.startswith(
        "method,target,raw_mean,raw_sd,compensated_mean,compensated_sd,raw_ece_mean,"
    )
    assert header.endswith(
        ",compensated_nll_mean,compensated_nll_sd,raw_error,compensated_error,"
        "raw_subset_sd,compensated_subset_sd,num_samples,num_effective,sampling"
    )
    endings = {tuple(row.split(",")[-3:]) for row in rows}
    assert endings == {("500", "330.2", "expected")}
    spreads = [float(value) for row in rows for value in row.split(",")[-7:-3]]
    assert all(0 <= value < 5 for value in spreads)
    assert [row.split(",")[:2] for row in rows] == [
        ["LADE", "backward:10"],
        ["Softmax", "backward:10"],
    ]

    result = tailshift("report", *runs, "softmax", "-o", "out", "--title", "<My> title")
    assert result == (0, "out/report.html\n", "")
    assert "&lt;My&gt; title" in Path("out/report.html").read_text(encoding="utf-8")
    assert len(Path("out/table.csv").read_text().splitlines()) == 1 + 2 * 11


def test_evaluate__metrics_targets_and_ways(
    tailshift: Command, digits_run: ts.Run
) -> None:
    run = digits_run.directory
    result = tailshift(
        *("evaluate", run, "--target", "dirichlet:1:seed3", "--target", "tweak:2:0.5"),
        *("--metric", "nll", "--metric", "few", "--sampling", "reweighted"),
        *("--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex"),
    )
    assert (result.code, result.err) == (0, "")
    assert "NLL (less is better)" in result.out
    assert "dirichlet 1 seed3" in result.out
    targets = ["dirichlet:1:seed3", "tweak:2:0.5"]
    records = ts.evaluate(
        digits_run.predictions("test"), targets, sampling="reweighted"
    )
    for record in records[1::2]:  # LADE's row is its compensated result
        assert f"{record.nll:.2f}" in result.out
        assert f"{record.nll:.2f}" in Path("t.md").read_text(encoding="utf-8")
        assert f"{record.nll:.2f}" in Path("t.tex").read_text(encoding="utf-8")
        assert f"{record.ece:.6f}" in Path("t.csv").read_text(encoding="utf-8")
    assert Path("t.tex").read_text(encoding="utf-8").count("\\toprule") == 2


def _uneven_file(path: Path) -> ts.Predictions:
    """Save logits of 60, 20 and 3 samples, and none of a fourth class."""
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(torch.tensor([60, 20, 3]))
    counts = torch.tensor([600, 200, 30, 10])
    predictions = ts.Predictions(
        torch.randn(len(labels), 4) + 2 * torch.eye(4)[labels],
        labels,
        source_counts=counts,
        logit_prior=counts / counts.sum(),
        class_names=("kea", "kiwi", "tui", "weka"),
    )
    predictions.save(path)
    return predictions


def test_evaluate__from_the_measured_prior(
    tailshift: Command, digits_run: ts.Run
) -> None:
    run, target = str(digits_run.directory), ("--target", "backward:10")
    declared = tailshift("evaluate", run, *target, "--csv", "declared.csv")
    measured = tailshift(
        "evaluate", run, *target, "--prior", "measured", "--csv", "measured.csv"
    )
    sentence = r"LADE seed 0: logits carry p_s\^κ with κ = 0.00 declared, "
    for result in (declared, measured):
        assert result.code == 0
        assert re.search(sentence, " ".join(result.out.split()))
    assert Path("declared.csv").read_text() != Path("measured.csv").read_text()
    refused = tailshift("evaluate", run, "--prior", "measured", "--results", "r.csv")
    assert refused.code == 2
    assert refused.err == (
        "error: `--results` and `--logits` keep what methods declare, but `--prior` is "
        "'measured'. Leave one of them out.\n"
    )


def test_evaluate__logits_whose_classes_differ_in_size(tailshift: Command) -> None:
    """All samples count, the effective number is by hand, the fourth class is named."""
    predictions = _uneven_file(Path("mine.safetensors"))
    p_t = torch.tensor([1.0, 50**0.5, 50.0])
    w = (p_t / torch.tensor([60, 20, 3]))[predictions.labels].double()
    right = (predictions.logits.argmax(1) == predictions.labels).double()
    accuracy, n = 100 * (w @ right) / w.sum(), w.sum() ** 2 / (w @ w)
    result = tailshift(
        *("evaluate", "Mine=mine.safetensors", "--target", "backward:50"),
        *("--csv", "t.csv"),
    )
    sentence = "1 class without test samples is left out of every target: weka."
    assert (result.code, result.err) == (0, f"note: {sentence}\n")
    assert f"{accuracy:.1f}" in result.out
    assert "n: effective test samples, of 83 weighted" in " ".join(result.out.split())
    line = Path("t.csv").read_text(encoding="utf-8").splitlines()[1]
    assert line.startswith(f"Mine,backward:50,{accuracy:.2f},")
    effective = f"{n:.1f}".removesuffix(".0")
    assert line.endswith(f",83,{effective},reweighted")

    assert len(tailshift("evaluate", "mine.safetensors").out.splitlines()) > 11
    thinned = tailshift("evaluate", "mine.safetensors", "--sampling", "first")
    assert "backward 50" in thinned.out
    result = tailshift("evaluate", "mine.safetensors", "--results", "r.csv")
    assert (result.code, result.err) == (
        2,
        "error: `--results` and `--logits` keep what runs have, but mine.safetensors "
        "is a file of logits. Name run directories.\n",
    )


def test_report__says_samples_and_how_many(tailshift: Command) -> None:
    """The page of logits made elsewhere speaks of no images."""
    _uneven_file(Path("mine.safetensors"))
    result = tailshift("report", "mine.safetensors", "-o", "out")
    assert result.err.count("weka") == 1
    page = Path("out/report.html").read_text(encoding="utf-8")
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert "images" not in text
    assert re.search(
        r"on <em>backward 50</em> \(83 weighted samples, effectively \d\)", text
    )
    assert "n: effective test samples, of 83 weighted to the target." in text
    assert "<dt>Test samples</dt>" in text
    assert "1 class without test samples is left out of every target: weka." in text


def test_evaluate__random_test_sets(tailshift: Command, digits_run: ts.Run) -> None:
    result = tailshift(
        *("evaluate", digits_run.directory, "--target", "backward:10"),
        *("--sampling", "random", "--repeats", "4"),
    )
    [record] = [
        record
        for record in ts.evaluate(
            digits_run.predictions("test"),
            ["backward:10"],
            sampling="random",
            repeats=4,
        )
        if record.compensated
    ]
    sd = 100 * record.deviation.accuracy
    assert f"{100 * record.accuracy:.1f} ± {sd:.1f}" in result.out


def test_train__seeds_below_an_output_folder(tailshift: Command) -> None:
    result = tailshift("train", "digits_lt", "--seeds", "3", "--output", "a b", *TINY)
    assert result.code == 0
    assert ts.load_run("a b/softmax-seed3").is_finished


def test_train__force_and_resume(tailshift: Command) -> None:
    assert tailshift("train", "digits_lt", "--output", "run", *TINY).code == 0
    first = ts.load_run("run").environment["started"]
    assert tailshift("train", "--resume", "--output", "run").code == 0
    assert ts.load_run("run").environment["started"] == first
    again = ("train", "digits_lt", "--output", "run", "--force", *TINY)
    assert tailshift(*again, "--seeds", "1").code == 0
    assert tailshift(*again, "--set", "seed=5").code == 0
    assert ts.load_run("run").config.seed == 5
    assert ts.load_run("run/softmax-seed1").config.seed == 1


def test_demo__prints_table_and_path_last(
    tailshift: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_demo(output: Path, **settings: object) -> tuple[list[Summary], Path]:
        runs = [report_run(ts.load_run(run_copy))]
        return summarise_runs(runs), output / "report.html"

    monkeypatch.setattr("tailshift.demo.run_demo", short_demo)
    for arguments, folder in ((), "runs/demo-1"), (("--output", "mine"), "mine"):
        result = tailshift("demo", *arguments)
        assert (result.code, result.err) == (0, "")
        assert "backward 50" in result.out
        assert result.out.splitlines()[-1] == f"{folder}/report.html"


@pytest.mark.parametrize("sentences", [[], ["LADE: [no] better.", "BBN: no better."]])
def test_demo__all_methods(
    tailshift: Command,
    run_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentences: list[str],
) -> None:
    """One seed each; then what compensation does not help, if anything."""
    asked: dict[str, object] = {}

    def short_demo(output: Path, **settings: object) -> tuple[list[Summary], Path]:
        asked.update(settings)
        runs = [report_run(ts.load_run(run_copy))]
        return summarise_runs(runs), output / "report.html"

    monkeypatch.setattr("tailshift.demo.run_demo", short_demo)
    monkeypatch.setattr("tailshift.demo.why_not_helped", lambda _: sentences)
    result = tailshift("demo", "--all")
    assert (result.code, result.err) == (0, "")
    assert (asked["methods"], asked["seeds"]) == (METHODS.names(), (0,))
    said = sentences or ["Compensation helps each of them on backward 50."]
    assert result.out.splitlines()[-1 - len(said) :] == [
        *said,
        "runs/demo-1/report.html",
    ]


def test_train__from_a_finished_run(tailshift: Command) -> None:
    """Also where the path would be a number or a quotation in TOML."""
    short = ("--set", "train.epochs=1")
    assert tailshift("train", "digits_lt", *short, "--output", "1.5").code == 0
    for source in ("1.5", "1.5/weights.safetensors"):
        folder = f'"{source[-3:]}"'
        result = tailshift(
            *("train", "digits_lt", "--method", "ncm", "--from", source),
            *(*short, "--output", folder),
        )
        assert (result.code, result.complaints) == (0, [])
        run = ts.load_run(folder)
        assert run.config.train.start_from == source
        assert run.metrics == []  # nothing was left to train
    result = tailshift("train", "digits_lt", "--from", "1.5", *short)
    assert result == (
        2,
        "",
        "error: `train.start_from` (--from) 1.5 must be a run on features "
        "(model.frozen=true) with its network, since softmax has one stage, but is "
        "not. Drop it, or name such a run.\n",
    )


def test_demo__refuses_a_folder_that_exists(tailshift: Command) -> None:
    Path("mine").mkdir()
    sentence = "`output` mine exists. Name a new folder (--output)."
    assert tailshift("demo", "--output", "mine") == (2, "", f"error: {sentence}\n")


def test_interrupt__leaves_a_usable_run(tmp_path: Path, tailshift: Command) -> None:
    command = [sys.executable, "-m", "tailshift", "train", "digits_lt"]
    command += ["--output", "my run", "--set", "train.epochs=12"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "my run" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.is_file() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert {line.split()[0] for line in err.splitlines()} <= TOLD
    run = ts.load_run(tmp_path / "my run")
    done = run.facts.epochs_done
    assert run.facts.state == "interrupted"
    assert 1 <= done == len(run.metrics) < 12
    assert out == (
        f"interrupted after {done} epochs; resume with "
        "tailshift train --resume --output 'my run'\n"
    )

    shown = _process(tmp_path, "evaluate", "my run")
    assert shown.returncode == 0
    assert "backward 50" in shown.stdout
    assert shown.stderr == (
        f"note: my run is not finished; {done} of 12 epochs are done.\n"
    )

    result = tailshift("train", "--resume", "--output", "my run")
    assert (result.code, result.complaints) == (0, [])
    run = ts.load_run(tmp_path / "my run")
    assert run.is_finished
    assert [record["epoch"] for record in run.metrics] == list(range(1, 13))
    assert tailshift("report", "my run", "-o", "out").err == ""


def test_interrupt__twice(tailshift: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C does not wait; the exit code is the same."""

    def ctrl_c(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tailshift.training.train", ctrl_c)
    result = tailshift("train", "digits_lt", "--output", "run")
    assert (result.code, result.out, result.err) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["train"],
            "`RECIPE` is missing. `tailshift list recipes` shows all; to resume a "
            "run, give --resume and --output.",
        ),
        (
            ["train", "digit_lt"],
            "unknown recipe 'digit_lt'; did you mean 'digits_lt'? "
            "`tailshift list recipes` shows all.",
        ),
        (["train", "none.toml"], "there is no recipe file none.toml."),
        (
            ["train", "digits_lt", "--method", "lad"],
            "`method.name`: unknown method 'lad'; did you mean 'lade'? Known: "
            f"{', '.join(METHODS)}",
        ),
        (
            ["train", "digits_lt", "--set", "data.name=digit_lt"],
            "`data.name`: unknown data set 'digit_lt'; did you mean 'digits_lt'? "
            f"Known: {', '.join(DATASETS)}",
        ),
        (
            ["train", "digits_lt", "--set", "model.name=resnet31"],
            "`model.name`: unknown model 'resnet31'; did you mean 'resnet32'? "
            f"Known: {', '.join(MODELS)}",
        ),
        (
            ["train", "digits_lt", "--set", "data.imbalance_ratio=0.01"],
            "`imbalance_ratio` must be >= 1 (largest / smallest count), but is 0.01. "
            "Did you mean 100?",
        ),
        (
            ["train", "digits_lt", "--set", "optim.lr=-0.1"],
            "`optim.lr` must be greater than 0, but is -0.1.",
        ),
        (
            ["train", "digits_lt", "--set", "optim.lr"],
            "`--set` takes KEY=VALUE, but got 'optim.lr'.",
        ),
        (
            ["train", "digits_lt", "--seeds", "0-2"],
            "`--seeds` must be like 0,1,2, but is '0-2'.",
        ),
        (
            ["train", "digits_lt", "--seeds", "0,"],
            "`--seeds` must be like 0,1,2, but is '0,'.",
        ),
        (
            ["train", "digits_lt", "--seeds", "1,2,1"],
            "`--seeds` must differ, but is '1,2,1'.",
        ),
        (
            ["train", "digits_lt", "--seeds=-1"],
            "`seed` must be an integer in 0..2**32-1, but is -1.",
        ),
        (
            ["train", "--resume", "--output", "none"],
            "there is no run directory none.",
        ),
        (
            ["train", "--resume", "--output", "none", "--set", "train.epochs=9"],
            "`--resume` keeps the settings that the run was started with. Drop "
            "--method, --seeds and --set, or give a RECIPE.",
        ),
        (["evaluate", "none"], "there is no run directory none."),
        (
            ["evaluate", "."],
            ". is not a run directory: it has no config.json. "
            "`tailshift train` makes one.",
        ),
        (["report", "none", "-o", "out"], "there is no run directory none."),
        (
            ["evaluate", "none", "--metric", "acuracy"],
            "unknown metric 'acuracy'; did you mean 'accuracy'? Known: accuracy, "
            "brier, classwise_ece, ece, few, macro_f1, many, medium, nll, top5",
        ),
    ],
)
def test_bad_input__one_sentence_and_code_2(
    tailshift: Command, arguments: list[str], sentence: str
) -> None:
    assert tailshift(*arguments) == (2, "", f"error: {sentence}\n")
    assert list(Path().iterdir()) == []


def test_train__faulty_recipe_lists_all_faults(tailshift: Command) -> None:
    Path("mine.toml").write_text(
        'extends = "digits_lt"\n[train]\nepoch = 3\n[optim]\nlr = "fast"\n'
    )
    known = ", ".join(sorted(ts.load_recipe("digits_lt").train.model_dump()))
    assert tailshift("train", "mine.toml") == (
        2,
        "",
        "error: `optim.lr` must be a valid number, but is 'fast'.\n"
        "error: `train.epoch` is not a setting of `train`; did you mean 'epochs'? "
        f"Known: {known}\n",
    )


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_train__output_is_no_run(tailshift: Command, force: list[str]) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").touch()
    result = tailshift("train", "digits_lt", "--output", "mine", *force)
    assert result == (
        2,
        "",
        "error: `output` mine exists and is not a run directory, so nothing in it is "
        "replaced. Name another folder (--output).\n",
    )
    assert Path("mine/thesis.txt").exists()


def test_train__one_of_several_outputs_exists(
    tailshift: Command, run_copy: Path
) -> None:
    """It is refused before the first run is trained."""
    Path("out").mkdir()
    run_copy.rename("out/softmax-seed1")
    result = tailshift("train", "digits_lt", "--seeds", "0,1", "--output", "out")
    assert result == (
        2,
        "",
        "error: `output` out/softmax-seed1 exists. Resume it (--resume), replace "
        "it (--force) or name another folder (--output).\n",
    )
    assert [path.name for path in Path("out").iterdir()] == ["softmax-seed1"]


def test_train__resume_with_other_settings(tailshift: Command, run_copy: Path) -> None:
    asked = ts.load_recipe("digits_lt").train.epochs
    result = tailshift(
        "train", "digits_lt", "--method", "lade", "--resume", "--output", run_copy.name
    )
    assert result == (
        2,
        "",
        f"error: run was started with train.epochs = 2, but --resume asks for {asked}. "
        "Resume with the settings it was started with, or name another folder "
        "(--output).\n",
    )


def test_train__resume_before_training_began(
    tailshift: Command, run_copy: Path
) -> None:
    for path in run_copy.rglob("*"):
        if path.is_file() and path.name != "config.json":
            path.unlink()
    assert tailshift("train", "--resume", "--output", "run").code == 0
    assert ts.load_run(run_copy).is_finished


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"val_balanced_accuracy": 1}', "`epoch` is missing"),
        (
            '{"epoch": 1, "skipped_images": "x"}',
            "`skipped_images` must be a valid integer, but is 'x'",
        ),
        (
            '{"skipped_images": "x"}',
            "`epoch` is missing and `skipped_images` must be a valid integer, but is "
            "'x'",
        ),
    ],
)
def test_train__resume_puts_strange_metrics_right(
    tailshift: Command, run_copy: Path, line: str, fault: str
) -> None:
    path = run_copy / "metrics.jsonl"
    before = path.read_text()
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(ValueError, match="line 1") as error:
        _ = ts.load_run("run").metrics
    assert str(error.value) == (
        f"run/metrics.jsonl is damaged: in line 1 {fault}. Train the run again with "
        "--force."
    )
    assert tailshift("train", "--resume", "--output", "run").code == 0
    assert path.read_text() == before


@pytest.mark.parametrize("recipe", ["evil.toml", "../evil.toml"])
def test_evaluate__results_open_no_recipe_that_a_run_names(
    tailshift: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """Sealed or not: a run's configuration may be a stranger's."""
    path = run_copy / "config.json"
    write_json(path, read_json(path) | {"recipe": recipe})
    Path("in").mkdir()
    monkeypatch.chdir("in")
    Path(recipe).write_text("no TOML [")
    result = tailshift("evaluate", "../run", "--results", "r.csv")
    assert (result.code, result.err) == (0, "")
    assert {row["recipe"] for row in read_results(Path("r.csv"))} == {recipe}


def test_evaluate__run_cut_off(tailshift: Command, run_copy: Path) -> None:
    predictions = run_copy / "predictions" / "test.safetensors"
    os.truncate(predictions, 500)
    assert tailshift("evaluate", "run") == (
        2,
        "",
        "error: run/predictions/test.safetensors is no safetensors file or is cut "
        "short.\n",
    )
    predictions.unlink()
    assert tailshift("evaluate", "run") == (
        2,
        "",
        "error: run has no logits of split 'test', only of: val. Finish it with "
        "`tailshift train --resume --output run`.\n",
    )
    os.truncate(run_copy / "run.json", 30)
    result = tailshift("evaluate", "run")
    assert result.code == 2
    assert result.err.startswith("error: run/run.json is not valid JSON (")
    assert len(result.err.splitlines()) == 1
    (run_copy / "run.json").write_text(json.dumps({"state": "finished"}))
    assert tailshift("evaluate", "run") == (
        2,
        "",
        "error: run/run.json is damaged: it lacks class_names, data_fingerprint, "
        "epochs_done, image_size, in_channels, mean, source_counts, std. Train the run "
        "again with --force.\n",
    )


def test_evaluate__runs_that_cannot_be_averaged(
    tailshift: Command, run_copy: Path, tmp_path: Path
) -> None:
    assert tailshift("evaluate", "run", "run") == (
        2,
        "",
        "error: `runs` must differ in method or seed, but LADE seed 0 is there twice. "
        "Give one of them another method name.\n",
    )
    other = ["--set", "data.imbalance_ratio=10", "--set", "seed=1", "--output", "other"]
    assert tailshift("train", "digits_lt", "--method", "lade", *other, *TINY).code == 0
    assert tailshift("evaluate", "run", "other") == (
        2,
        "",
        "error: `runs` must share their training counts, but those of LADE seed 0 and "
        "LADE seed 1 differ. Write a report for each data set.\n",
    )


@pytest.mark.parametrize("target", ["sideways:3", "forward:0", "forward:x", "none.csv"])
def test_evaluate__bad_target(tailshift: Command, run_copy: Path, target: str) -> None:
    """The sentences themselves are tested where targets are."""
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        ts.evaluate(ts.load_run(run_copy).predictions(), [target])
    assert tailshift("evaluate", "run", "--target", target) == (
        2,
        "",
        f"error: {error.value}\n",
    )


def test_evaluate__keeps_a_table_that_exists(
    tailshift: Command, run_copy: Path
) -> None:
    Path("t.csv").write_text("mine")
    result = tailshift("evaluate", "run", "--csv", "t.csv")
    assert result == (
        2,
        "",
        "error: t.csv exists. Replace it (--force) or name another.\n",
    )
    assert Path("t.csv").read_text() == "mine"
    assert tailshift("evaluate", "run", "--csv", "t.csv", "--force").code == 0
    assert Path("t.csv").read_text().startswith("method,target,")
    assert tailshift("evaluate", "run", "--csv", "run") == (
        2,
        "",
        "error: run is a folder, but must be a file.\n",
    )


@pytest.mark.parametrize("name", ["report.html", "table.csv"])
def test_report__keeps_what_exists(
    tailshift: Command, run_copy: Path, name: str
) -> None:
    path = Path("out") / name
    path.parent.mkdir()
    path.write_text("mine")
    assert tailshift("report", "run", "-o", "out") == (
        2,
        "",
        f"error: out/{name} exists. Replace it (--force) or name another.\n",
    )
    assert [file.name for file in Path("out").iterdir()] == [name]
    assert path.read_text() == "mine"
    assert tailshift("report", "run", "-o", "out", "--force").code == 0
    assert path.read_text(encoding="utf-8") != "mine"


def test_report__output_is_a_file(tailshift: Command, run_copy: Path) -> None:
    Path("out").write_text("mine")
    assert tailshift("report", "run", "-o", "out") == (
        2,
        "",
        "error: out is a file, but must be a folder.\n",
    )


def test_evaluate__control_characters_in_a_title(
    tailshift: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(force_terminal=True, color_system=None)
    monkeypatch.setattr("tailshift.cli.show.console", terminal)
    monkeypatch.setattr(METHODS.get("lade"), "title", "LADE\x1b[31m")
    result = tailshift("evaluate", "run", "--target", "uniform")
    assert result.code == 0
    assert "LADE\\x1b[31m seed 0: logits carry p_s^κ" in result.out
    assert "\x1b" not in result.out + result.err


def test_error__what_should_never_happen_is_one_line(
    tailshift: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("shape (3,)\n  does not fit\x1b[31m")

    monkeypatch.setattr("tailshift.runs.run.load_run", fail)
    result = tailshift("evaluate", "run")
    assert (result.code, result.out) == (1, "")
    assert re.fullmatch(
        r"error: RuntimeError: shape \(3,\) does not fit\\x1b\[31m "
        r"\(test_cli\.py:\d+\)\. This is a fault of tailshift: please report it, with "
        r"what TAILSHIFT_TRACEBACK=1 shows\.\n",
        result.err,
    )


def test_error__traceback_on_request(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILSHIFT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown recipe"):
        tailshift("train", "digit_lt")
