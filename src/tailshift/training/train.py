"""Train a configuration: from settings to a finished run directory."""

from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.data import LongTailedData
from tailshift.deprecation import warn_deprecated
from tailshift.runs.checkpoint import read_position
from tailshift.runs.directory import begin_directory, check_directory, default_directory
from tailshift.runs.network import place_head
from tailshift.runs.run import Run, load_run
from tailshift.training import distributed
from tailshift.training import resolve as _resolve
from tailshift.training.build import build_trainer
from tailshift.training.inference import SplitFeatures
from tailshift.training.loop import detect_anomalies
from tailshift.training.progress import training_progress
from tailshift.training.recorder import Recorder
from tailshift.training.resolve import Resolved, resolve
from tailshift.training.start import start_from
from tailshift.workers import Preempted, StopRequest, stop_on_interrupt


def train(
    config: RunConfig,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    data: LongTailedData | None = None,
    verbose: bool = False,
) -> Run:
    """Train, evaluate and return the run.

    Ctrl-C (once) finishes the current step, then saves a run that can be used and
    resumed. In the last step it saves a finished run and raises KeyboardInterrupt, so
    a loop over seeds ends. SIGTERM saves without an evaluation and ends the process
    with exit code 75.

    Args:
        config: Run configuration, for example from `tailshift.load_recipe`.
        output: Run directory, by default ``runs/RECIPE/METHOD-seedN``.
        data_root: Folder of the data, if it is read from disk.
        resume: Resume from the last checkpoint in ``output``.
        force: Replace an existing run in ``output``.
        data: Splits to use instead of those that ``config`` names.
        verbose: Print the data, the network and the expected time on standard error.
            If that is not a terminal, also print one line per epoch.
    """
    directory = Path(output) if output is not None else default_directory(config)
    check_directory(directory, config, resume=resume, force=force)
    with distributed.report_lost_processes():
        resolved = resolve(
            config,
            directory,
            data=data,
            data_root=data_root,
            resume=resume,
            is_verbose=verbose,
        )
        _run(resolved, resume=resume, force=force, is_verbose=verbose)
    return load_run(directory)


def _run(resolved: Resolved, *, resume: bool, force: bool, is_verbose: bool) -> None:
    """Train a resolved run while this process holds its directory."""
    directory, config, fabric = resolved.directory, resolved.config, resolved.fabric
    recorder = Recorder(
        directory,
        config,
        resolved.data,
        resolved.model,
        fabric,
        is_verbose=is_verbose,
    )
    with distributed.open_directory_together(
        fabric, directory, config, resume=resume, force=force
    ) as is_resumed:
        _write_run(recorder, is_resumed=is_resumed)


def _write_run(recorder: Recorder, *, is_resumed: bool) -> None:
    """Train from the state of the run directory, evaluate and save the results.

    Args:
        recorder: Recorder of the run, whose directory this process holds.
        is_resumed: Whether to resume a run instead of starting one.
    """
    fabric, first = recorder.fabric, _first_stage(recorder, is_resumed=is_resumed)
    fabric.barrier()
    if not is_resumed and fabric.is_global_zero:
        begin_directory(recorder.directory, recorder.config)
    fabric.barrier()
    recorder.print_plan(is_filled=is_resumed and recorder.checkpoint.is_file())
    with stop_on_interrupt() as stop, recorder.tracking():
        finished = _train_stages(recorder, stop, first, is_resumed=is_resumed)
    recorder.save_checkpoint()
    if fabric.broadcast(stop.is_preemption):
        recorder.write_facts("interrupted")
        fabric.barrier()  # a process that ends early may end the others
        raise Preempted(recorder.directory)
    recorder.save_results(finished)
    if fabric.broadcast(stop.is_set) and finished:  # no other run must start
        raise KeyboardInterrupt(f"interrupted; {recorder.directory} is finished")


def _train_stages(
    recorder: Recorder, stop: StopRequest, first: int, *, is_resumed: bool
) -> bool:
    """Train the stages in order; return False if stopped before the end.

    Args:
        recorder: Recorder of the run, with its model and data.
        stop: Ends training after the current step.
        first: Number of the stage to start with.
        is_resumed: Whether to start from the checkpoint.
    """
    config, data, model = recorder.config, recorder.data, recorder.model
    features = SplitFeatures(recorder.fabric, model, data, config)
    stages = config.method.stages()
    is_restored = is_resumed and recorder.checkpoint.is_file()
    for number, stage in enumerate(stages[first:], first):
        if number > 0:
            previous = model.head
            place_head(model, config, number)
            if not (is_restored and number == first):
                model.head.begin(previous, features)
        trainer = build_trainer(config, data, model, recorder.fabric, number)
        recorder.follow(trainer, is_resumed=is_resumed and number == first)
        title = f"{config.recipe} · {config.method.title} · seed {config.seed}"
        if len(stages) > 1:
            title += f" · {stage.title}"
        with (
            closing(trainer.loader),
            training_progress(
                title,
                trainer.num_steps,
                done=trainer.step,
                is_verbose=recorder.is_verbose,
            ) as progress,
            _anomalies(recorder),
        ):
            if not trainer.fit(
                on_epoch=partial(recorder.record_epoch, progress=progress),
                on_step=recorder.after_step,
                stop=stop,
                log=progress.step,
            ):
                return False
        recorder.take_average()  # the next stage starts from it
    return True


def _anomalies(recorder: Recorder) -> AbstractContextManager[None]:
    """Return the search for NaN in the current stage, if it is enabled."""
    if not recorder.config.train.detect_anomaly:
        return nullcontext()
    return detect_anomalies(recorder.model, lambda: recorder.trainer.place)


def _first_stage(recorder: Recorder, *, is_resumed: bool) -> int:
    """Return the stage to start with: the checkpoint's, or the first missing one.

    The model gets the weights of the stage that ``train.start_from`` provides.
    """
    config = recorder.config
    if is_resumed and recorder.checkpoint.is_file():
        return read_position(recorder.checkpoint).stage
    if config.train.start_from:
        start_from(recorder.model, config, recorder.data)
        return config.given_stages
    return 0


def __getattr__(name: str) -> Any:
    """Return a moved name, with a warning."""
    if name not in ("banked", "with_validation"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "training" if name == "with_validation" else "training.resolve"
    warn_deprecated(f"training.train.{name}", f"`{home}.{name}`")
    return getattr(_resolve, name)
