"""Feature banks made from images: in chunks, resumable, on several processes."""

import copy
import dataclasses
import hashlib
import json
import os
import signal
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tailshift.config import ModelConfig
from tailshift.data import Dataset, FeatureSplit, LongTailedData, Split
from tailshift.data.batches import BatchPlan
from tailshift.data.features import (
    BANK_FACTS,
    FeatureBank,
    create_split,
    map_split,
    split_checksum,
    split_path,
)
from tailshift.data.image_loader import BrokenImageWarning, blocked, default_num_workers
from tailshift.data.image_split import FileSplit
from tailshift.data.own_images import check_every_name
from tailshift.models import Backbone, pretrained
from tailshift.models.pretrained import named_network
from tailshift.recipes import dataset_of
from tailshift.runs.directory import LOCK, hold_lock
from tailshift.runs.network import build_model_backbone
from tailshift.storage import (
    atomic_write,
    holding_signals,
    make_folder,
    read_json,
    write_json,
)
from tailshift.training.progress import RELAY_SECONDS, duration, print_line

BATCH = 64
"""Images that go through the network at a time."""

MARKED = 16
"""Batches between two notes of how far a process is."""

TIMED_IMAGES = 256
"""Images after which the time to go is told."""

BEGUN = "begun.json"
"""What a bank that is not finished is to hold."""

WAIT_SECONDS = 1.0
"""Time between two looks at whether another process has finished a bank."""

FEATURE_FIELDS = ("name", "pretrained", "weights", "frozen", "image_size")
"""Settings of a network that its features depend on."""

Told = Callable[[int], None]
"""Told of images that are done."""


@dataclasses.dataclass(frozen=True, eq=False)
class BankPlan:
    """What a bank is to hold."""

    folder: Path
    data: LongTailedData
    model: ModelConfig
    views: int = 1
    """Views of each training image; the first is unaltered."""

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that have samples."""
        data = self.data
        named = {"train": data.train, "val": data.val, "test": data.test}
        return {name: split for name, split in named.items() if split}

    def num_views(self, name: str) -> int:
        """Return how many views a split has."""
        return self.views if name == "train" else 1

    def mark(self, name: str, view: int, rank: int, jobs: int) -> Path:
        """Return the file that says how many batches a process has done."""
        return self.folder / f"progress-{name}-{view}-{rank}-of-{jobs}"

    @property
    def num_images(self) -> int:
        """Images that go through the network, all views counted."""
        return sum(len(s) * self.num_views(name) for name, s in self.splits.items())


def features(
    data: str | Dataset | LongTailedData,
    model: str,
    output: str | Path,
    *,
    weights: str | Path = "",
    image_size: int = 0,
    views: int = 1,
    jobs: int = 1,
    skip_broken: bool = False,
    force: bool = False,
    data_root: str | Path | None = None,
    verbose: bool = False,
) -> FeatureBank:
    """Write the features of all images to a folder, as ``tailshift features`` does.

    An interrupted bank is continued where it stands, and a finished one that fits is
    returned as it is.

    Args:
        data: ``folder:PATH``, ``csv:FILE``, ``list:FILE``, ``parquet:PATH``,
            ``datasets:PATH|NAME``, the name of a data set or of a recipe, or the data
            themselves.
        model: ``lite0`` or ``timm:NAME``.
        output: The bank's folder.
        weights: A file of weights instead of the published ones.
        image_size: Height and width that the network sees; 0 takes those of the images,
            but at least 128 and at most the network's own.
        views: Views of each training image: the first unaltered, the others augmented
            as in training.
        jobs: Processes, each with its share of the cores.
        skip_broken: Skip images that cannot be read, instead of stopping.
        force: Replace a bank of other images or of another network.
        data_root: The folder that holds the data, if its name does not say.
        verbose: Print on standard error what is done, and the expected time.
    """
    network = {**named_network(model, str(weights)), "frozen": True}
    section = ModelConfig.model_validate({**network, "image_size": image_size})
    if isinstance(data, str):
        data = dataset_of(data)
    if isinstance(data, Dataset):
        dataset = data.without_stops() if skip_broken else data
        root = None if data_root is None else Path(data_root)
        data = dataset.load(root=root, seed=0)
    with extraction_progress(is_verbose=verbose) as progress:
        return make_bank(
            *(data, section, output),
            views=views,
            jobs=jobs,
            force=force,
            track=progress,
        )


def make_bank(
    data: LongTailedData,
    model: ModelConfig,
    output: str | Path,
    *,
    views: int = 1,
    jobs: int = 1,
    force: bool = False,
    track: Callable[[int], Told] = lambda num_images: lambda images: None,
) -> FeatureBank:
    """Write the features of all images to a folder, and return the bank.

    If another process makes it, this one waits for it.

    Args:
        data: The images, as `Dataset.load` gives them.
        model: The network and its weights.
        output: The bank's folder.
        views: Views of each training image.
        jobs: Processes.
        force: Replace a bank of other images or of another network.
        track: Given the number of images, returns what is told of those done.
    """
    for name, number in (("views", views), ("jobs", jobs)):
        if number < 1:
            raise ValueError(f"`{name}` must be >= 1, but is {number}.")
    model = model.for_images(data.image_size)
    plan = BankPlan(Path(output), prepared(data, model), model, views)
    _check_folder(plan.folder)
    make_folder(plan.folder)
    with waiting_for_lock(plan.folder):
        backbone = build_model_backbone(model, image_size=plan.data.image_size)
        facts = bank_facts(plan, backbone)
        if (plan.folder / BANK_FACTS).exists():
            if not force:
                bank = FeatureBank.load(plan.folder)
                if _same(bank.facts.model_dump(mode="json"), facts):
                    return bank
            _refuse(plan.folder / BANK_FACTS, force)
        _begin(plan, facts, force)
        told = track(plan.num_images - num_done(plan, jobs))
        if jobs == 1:
            work(0, 1, plan, backbone, told)
        else:
            work_together(jobs, plan, backbone, told)
        _finish(plan, facts)
    return FeatureBank.load(plan.folder)


def _check_folder(folder: Path) -> None:
    """Refuse a folder with files that are no bank's: nothing in it is replaced."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"`output` must be a folder, but {folder} is a file. Name another."
        )
    is_bank = any((folder / name).exists() for name in (BANK_FACTS, BEGUN, LOCK))
    if folder.is_dir() and any(folder.iterdir()) and not is_bank:
        raise FileExistsError(
            f"`output` {folder} exists and is not a feature bank, so that nothing in "
            "it is replaced. Name another folder."
        )


@contextmanager
def waiting_for_lock(folder: Path) -> Iterator[None]:
    """Hold a bank's lock while the block runs, once another process lets go of it."""
    is_told = False
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(folder))
            except BlockingIOError:
                if not is_told:
                    text = f"features: another process makes {folder}; waiting for it"
                    print_line(Console(stderr=True), text)
                is_told = True
            else:
                yield
                return
        time.sleep(WAIT_SECONDS)


def prepared(data: LongTailedData, model: ModelConfig) -> LongTailedData:
    """Return the data with pixels normalised as the network's weights expect.

    Images that are read from files get the size that the network sees at once, and
    are cut to a square rather than pressed into one: it never saw such.
    """
    if data.in_channels != 3:
        raise ValueError(
            f"a pretrained network takes colour images, but those of {data.name} have "
            f"{data.in_channels} channel. Train a network for them: drop --features."
        )
    if not model.name.startswith("timm:"):
        raise ValueError(
            f"`model.name` must be a network of timm, such as 'timm:resnet50', to give "
            f"features, but is {model.name!r}."
        )
    mean, std, _ = pretrained.pixel_statistics(model.name.removeprefix("timm:"))
    splits: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        if isinstance(split, FileSplit):
            own, seen = split.preparation, model.image_size
            fit = "crop" if own.fit == "whole" else own.fit
            sized = dataclasses.replace(own, image_size=seen, fit=fit)
            split = dataclasses.replace(split, preparation=sized)
        if split is not None:
            splits[name] = dataclasses.replace(split, mean=mean, std=std)
    return dataclasses.replace(data, **splits)


def bank_facts(plan: BankPlan, backbone: Backbone) -> dict[str, Any]:
    """Return what bank.json says, but for the checksums, as JSON has it."""
    data = plan.data
    preparation = getattr(data.train, "preparation", None)
    facts = {
        "data": data.name,
        "model": plan.model.model_dump(mode="json", include=set(FEATURE_FIELDS)),
        "weights": weights_fingerprint(backbone),
        "preparation": preparation and preparation.to_mapping(),
        "skip_broken": getattr(data.train, "skip_broken", False),
        "class_names": data.class_names,
        "feature_dim": backbone.feature_dim,
        "in_channels": data.in_channels,
        "image_size": data.image_size,
        "mean": data.mean,
        "std": data.std,
        "splits": {
            name: {
                "samples": len(split),
                "views": plan.num_views(name),
                "fingerprint": split.fingerprint(),
            }
            for name, split in plan.splits.items()
        },
    }
    as_json: dict[str, Any] = json.loads(json.dumps(facts))
    return as_json


def check_bank(split: FeatureSplit, model: ModelConfig, backbone: Backbone) -> None:
    """Refuse features that another network gave than the one that is to take images.

    Args:
        split: Features of a bank.
        model: The network's section of a configuration.
        backbone: It.
    """
    made_by = split.network or {}
    for key, value in made_by.items():
        if getattr(model, key) != value:
            raise ValueError(
                f"the features were made with model.{key} = {value!r}, but it is "
                f"{getattr(model, key)!r} here. Name the bank with --features, or make "
                "another."
            )
    if split.weights and split.weights != weights_fingerprint(backbone):
        raise ValueError(
            f"the features were made with other weights of {model.name} than "
            f"{model.weights or 'those published'} has now. Make them again with "
            "`tailshift features --force`."
        )


def weights_fingerprint(backbone: Backbone) -> str:
    """Return 16 hex digits that tell a network's weights from others."""
    digest = hashlib.sha256()
    for name, tensor in backbone.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Compare what two banks are of; checksums, and samples skipped, aside."""
    for name, about in found["splits"].items():
        found["splits"][name] = {k: about[k] for k in ("views", "fingerprint")}
    wanted = json.loads(json.dumps(wanted))
    for name, about in wanted["splits"].items():
        wanted["splits"][name] = {k: about[k] for k in ("views", "fingerprint")}
    return found == wanted


def _refuse(path: Path, force: bool) -> None:
    if not force:
        raise FileExistsError(
            f"{path.parent} holds features of other images, or of another network. "
            "Replace them (--force), or name another folder."
        )


def _begin(plan: BankPlan, facts: dict[str, Any], force: bool) -> None:
    """Make the files that the features go to, unless they are there half filled."""
    folder = plan.folder
    begun = folder / BEGUN
    if begun.is_file() and not (folder / BANK_FACTS).exists():
        if _same(read_json(begun), facts):
            return
        _refuse(begun, force)
    for path in (folder / BANK_FACTS, begun, *folder.glob("progress-*")):
        path.unlink(missing_ok=True)
    for name, split in plan.splits.items():
        shape = (plan.num_views(name), len(split), facts["feature_dim"])
        arrays = create_split(split_path(folder, name), shape)
        arrays["labels"][:] = -1  # not there yet, or skipped
    write_json(begun, facts)


def num_done(plan: BankPlan, jobs: int) -> int:
    """Return how many images went through the network before, about."""
    done = 0
    for name, split in plan.splits.items():
        for view in range(plan.num_views(name)):
            marks = [plan.mark(name, view, rank, jobs) for rank in range(jobs)]
            batches = sum(_noted(mark)[0] for mark in marks)
            done += min(batches * BATCH, len(split))
    return done


def work(rank: int, jobs: int, plan: BankPlan, backbone: Backbone, track: Told) -> None:
    """Compute one process's share of all features.

    Args:
        rank: This process, 0..jobs − 1.
        jobs: Number of processes.
        plan: What the bank is to hold.
        backbone: The network.
        track: Told of images that are done.
    """
    num_cores = max(1, default_num_workers(jobs))
    if jobs > 1:
        torch.set_num_threads(num_cores)
    network = folded(backbone, plan.data.image_size).to(
        memory_format=torch.channels_last
    )
    for name, split in plan.splits.items():
        shape = (plan.num_views(name), len(split), backbone.feature_dim)
        arrays = map_split(split_path(plan.folder, name), shape, mode="r+")
        for view in range(plan.num_views(name)):
            mark = plan.mark(name, view, rank, jobs)
            loader = split.loader(
                batch_size=BATCH * jobs,
                training=view > 0,
                rank=rank,
                world_size=jobs,
                num_workers=num_cores,
            )
            done, total = _checked(mark, arrays, view, loader.plan)
            with closing(loader):
                for batch in loader.epoch(view, done):
                    ids = batch.sample_ids.numpy()
                    if len(ids):
                        given = embed(network, batch.images)
                        _check_finite(given, ids, name)
                        arrays["features"][view, ids] = given
                        arrays["labels"][ids] = batch.labels
                        total = _add_rows(total, arrays, view, ids)
                    done += 1
                    if done % MARKED == 0 or done == len(loader):
                        _note(mark, done, total, arrays)
                    track(len(ids))


def work_together(jobs: int, plan: BankPlan, backbone: Backbone, track: Told) -> None:
    """Compute all features in several processes, whose faults are raised here."""
    context = get_context("spawn")  # a fork would inherit PyTorch's threads
    counts, answers = context.Array("q", jobs), context.SimpleQueue()
    workers = [
        context.Process(
            target=_worker, args=(rank, jobs, plan, backbone, counts, answers)
        )
        for rank in range(jobs)
    ]
    try:
        with holding_signals(), blocked(signal.SIGINT):  # what they get is sent whole
            for worker in workers:
                worker.start()
        known, is_busy = 0, True
        while is_busy:
            time.sleep(RELAY_SECONDS)
            is_failed = any(worker.exitcode for worker in workers)
            is_busy = not is_failed and any(worker.is_alive() for worker in workers)
            known, before = sum(counts[:]), known
            track(known - before)
            _heed(answers)
        if any(worker.exitcode for worker in workers):
            raise ChildProcessError(
                f"a process that made features for {plan.folder} has ended early. The "
                "same command continues where it stands, with --jobs 1 in less memory."
            )
    finally:
        alive = [worker for worker in workers if worker.is_alive()]
        for worker in alive:
            worker.terminate()
        for worker in alive:  # another Ctrl-C may end the wait
            worker.join()


def _heed(answers: Any) -> None:
    """Raise, or warn of, what processes have sent."""
    while not answers.empty():
        answer = answers.get()
        if isinstance(answer, Warning):
            warnings.warn(answer, stacklevel=3)
        else:
            raise answer


def _worker(
    rank: int, jobs: int, plan: BankPlan, backbone: Backbone, counts: Any, answers: Any
) -> None:
    """Do a share of the work in a process of its own, and tell of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    set_start_method(None, force=True)  # or those that decode import PyTorch anew
    parent = os.getppid()

    def count(images: int) -> None:
        counts[rank] += images
        if os.getppid() != parent:  # killed: another may begin to write
            os._exit(1)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", BrokenImageWarning)
        try:
            work(rank, jobs, plan, backbone, count)
        except (ValueError, OSError, FloatingPointError) as error:
            answers.put(error)
    for warning in told:
        if isinstance(warning.message, BrokenImageWarning):
            answers.put(warning.message)


def _note(mark: Path, done: int, total: int, arrays: dict[str, Any]) -> None:
    """Write how many batches are done, and their checksum, once they are on disk."""
    for array in arrays.values():
        array.flush()
    with atomic_write(mark) as temporary:
        temporary.write_text(f"{done} {total:08x}")


def _noted(mark: Path) -> tuple[int, int]:
    """Return what was noted; nothing, if no note is there or it is damaged."""
    try:
        done, total = mark.read_text(encoding="ascii").split()
        return int(done), int(total, 16)
    except (FileNotFoundError, ValueError):
        return 0, 0


def _checked(
    mark: Path, arrays: dict[str, Any], view: int, plan: BatchPlan
) -> tuple[int, int]:
    """Return the batches done and their checksum; none, if what is there differs."""
    done, noted = _noted(mark)
    total = 0
    for request in plan.epoch(view)[:done]:
        ids = request.sample_ids
        total = _add_rows(total, arrays, view, ids[arrays["labels"][ids] >= 0])
    return (done, total) if total == noted and 0 <= done <= len(plan) else (0, 0)


def _add_rows(total: int, arrays: dict[str, Any], view: int, ids: Any) -> int:
    """Return a checksum that goes on with some samples' features and labels."""
    for rows in (arrays["features"][view, ids], arrays["labels"][ids]):
        total = zlib.crc32(rows.tobytes(), total)
    return total


def folded(backbone: Backbone, image_size: int) -> nn.Module:
    """Return a copy of a network with its batch normalisation in its convolutions.

    In float32 it gives the same features in two thirds of the time. bf16 would be as
    fast again, but moves features by several percent, and with them what a head that
    was trained on them answers for images.

    Args:
        backbone: It is left as it is.
        image_size: Height and width of its images.
    """
    network = copy.deepcopy(backbone).eval()
    shape = (2, 3, image_size, image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = network(images)
    whole = copy.deepcopy(network)
    for module in list(network.modules()):
        _fold_children(module)
    with torch.inference_mode():
        is_same = torch.allclose(network(images), expected, rtol=1e-3, atol=1e-4)
    return network if is_same else whole  # modules may run in another order


def _fold_children(module: nn.Module) -> None:
    """Fold each normalisation that follows a convolution into it, in place."""
    parts = list(module.named_children())
    for (_, first), (name, second) in pairwise(parts):
        if not (isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d)):
            continue
        after = [getattr(second, part, nn.Identity()) for part in ("drop", "act")]
        folded_pair = fuse_conv_bn_eval(first, second)
        first.weight, first.bias = folded_pair.weight, folded_pair.bias
        setattr(module, name, nn.Sequential(*after))


@torch.inference_mode()
def embed(network: nn.Module, images: Tensor) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the features of images, float32.

    Half precision would do for most networks, but not if a feature varies by less than
    a hundredth of its mean: what is lost there, a head that was fitted to it amplifies.
    """
    given: Tensor = network(images.contiguous(memory_format=torch.channels_last))
    return given.numpy()


def _check_finite(features: Any, ids: Any, name: str) -> None:
    if not np.isfinite(features).all():
        row = int(ids[(~np.isfinite(features)).any(axis=1).argmax()])
        raise FloatingPointError(
            f"the features of image {row} of the {name} split are not finite. Other "
            "weights are needed."
        )


def _finish(plan: BankPlan, facts: dict[str, Any]) -> None:
    """Seal the files with checksums, and write what the bank holds."""
    for name, about in facts["splits"].items():
        shape = (about["views"], about["samples"], facts["feature_dim"])
        arrays = map_split(split_path(plan.folder, name), shape)
        if name == "train":  # some may have been skipped
            labels = torch.from_numpy(arrays["labels"].astype(np.int64))
            kept, names = labels[labels >= 0], plan.data.class_names
            check_every_name(kept, names, str(plan.folder))
        about["checksum"] = split_checksum(arrays)
    write_json(plan.folder / BANK_FACTS, facts)
    for path in (plan.folder / BEGUN, *plan.folder.glob("progress-*")):
        path.unlink(missing_ok=True)


def cached_bank(
    data: LongTailedData, model: ModelConfig, track: Callable[[int], Told]
) -> FeatureBank:
    """Return the bank of a network and of images, made in the cache if it is not there.

    Args:
        data: The images.
        model: The network and its weights.
        track: Given the number of images, returns what is told of those done.
    """
    model = model.for_images(data.image_size)
    plan = BankPlan(Path(), prepared(data, model), model)
    backbone = build_model_backbone(model, image_size=plan.data.image_size)
    facts = json.dumps(bank_facts(plan, backbone), sort_keys=True)
    folder = cache_folder() / hashlib.sha256(facts.encode()).hexdigest()[:16]
    return make_bank(data, model, folder, track=track)


def cache_folder() -> Path:
    """Return the folder of banks that were not given another."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "tailshift" / "features"


@contextmanager
def extraction_progress(*, is_verbose: bool) -> Iterator[Callable[[int], Told]]:
    """Show how many images have gone through a network while the block runs.

    Yields:
        What takes the number of images, and returns what is told of those done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disable = not (is_verbose and console.is_terminal)
    with Progress(*columns, console=console, disable=disable, transient=True) as bar:

        def begin(num_images: int) -> Told:
            task = bar.add_task("features", total=num_images)
            began, done, is_told = 0.0, -1, not is_verbose

            def advance(images: int) -> None:
                nonlocal began, done, is_told
                bar.advance(task, images)
                if done < 0:  # the first batch takes longer
                    began, done = time.perf_counter(), 0
                    return
                done += images
                if not is_told and done >= TIMED_IMAGES:
                    is_told = True
                    each = (time.perf_counter() - began) / done
                    rest = (num_images - done - BATCH) * each
                    print_line(console, f"features: about {duration(rest)} to go")

            if is_verbose:
                text = f"features: {num_images:,} images go through the network once"
                print_line(console, text)
            return advance

        yield begin
