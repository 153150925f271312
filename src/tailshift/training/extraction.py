"""Feature banks made from images: in chunks, resumable, on several processes."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from tailshift.config import ModelConfig
from tailshift.data import LongTailedData, Split
from tailshift.data.features import (
    BANK_FACTS,
    FeatureBank,
    create_split,
    map_split,
    split_checksum,
    split_path,
)
from tailshift.models import Backbone, pretrained
from tailshift.runs.directory import hold_lock
from tailshift.runs.network import build_model_backbone
from tailshift.storage import atomic_write, read_json, write_json
from tailshift.training.distributed import machine_precision
from tailshift.training.recorder import duration, print_line

BATCH = 64
"""Images that go through the network at a time."""

TIMED_IMAGES = 512
"""Images after which the time to go is told."""

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

    @property
    def num_images(self) -> int:
        """Images that go through the network, all views counted."""
        return sum(len(s) * self.num_views(name) for name, s in self.splits.items())


def make_bank(
    data: LongTailedData,
    model: ModelConfig,
    output: str | Path,
    *,
    views: int = 1,
    jobs: int = 1,
    force: bool = False,
    track: Told = lambda images: None,
) -> FeatureBank:
    """Write the features of all images to a folder, and return the bank.

    One that was interrupted is continued where it stands, and a finished one that fits
    is returned as it is.

    Args:
        data: The images, as `Dataset.load` gives them.
        model: The network and its weights.
        output: The bank's folder.
        views: Views of each training image: the first unaltered, the others augmented
            as in training.
        jobs: Processes, each with its share of the cores.
        force: Replace a bank of other images or of another network.
        track: Told of images that are done.
    """
    if views < 1:
        raise ValueError(f"`views` must be >= 1, but is {views}.")
    plan = BankPlan(Path(output), prepared(data, model), model, views)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(plan.folder):
        backbone = build_model_backbone(model, image_size=plan.data.image_size)
        facts = bank_facts(plan, backbone)
        if (plan.folder / BANK_FACTS).exists():
            bank = FeatureBank.load(plan.folder)
            if _same(bank.facts.model_dump(mode="json"), facts):
                return bank
            _refuse(plan.folder / BANK_FACTS, force)
        _begin(plan, facts, force)
        if jobs == 1:
            work(0, 1, plan, backbone, track)
        else:
            spawn(work, (jobs, plan, backbone, None), nprocs=jobs)  # type: ignore[no-untyped-call] # torch's
        _finish(plan, facts)
    return FeatureBank.load(plan.folder)


def prepared(data: LongTailedData, model: ModelConfig) -> LongTailedData:
    """Return the data with pixels normalised as the network's weights expect."""
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
    splits: dict[str, Any] = {
        name: dataclasses.replace(split, mean=mean, std=std)
        for name in ("train", "val", "test")
        if (split := getattr(data, name)) is not None
    }
    return dataclasses.replace(data, **splits)


def bank_facts(plan: BankPlan, backbone: Backbone) -> dict[str, Any]:
    """Return what bank.json says, but for the checksums, as JSON has it."""
    data = plan.data
    preparation = getattr(data.train, "preparation", None)
    facts = {
        "data": data.name,
        "model": plan.model.model_dump(mode="json"),
        "weights": weights_fingerprint(backbone),
        "preparation": preparation and dataclasses.asdict(preparation),
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
    begun = folder / "begun.json"
    if begun.is_file() and not (folder / BANK_FACTS).exists():
        if _same(read_json(begun), facts):
            return
        _refuse(begun, force)
    for name in (BANK_FACTS, "begun.json"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("progress-*"):
        path.unlink()
    for name, split in plan.splits.items():
        shape = (plan.num_views(name), len(split), facts["feature_dim"])
        arrays = create_split(split_path(folder, name), shape)
        arrays["labels"][:] = -1  # not there yet

    write_json(begun, facts)


def work(
    rank: int,
    jobs: int,
    plan: BankPlan,
    backbone: Backbone,
    track: Told | None,
) -> None:
    """Compute one process's share of all features.

    Args:
        rank: Which process.
        jobs: Of how many.
        plan: What the bank is to hold.
        backbone: The network.
        track: Told of images that are done.
    """
    if jobs > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    backbone.eval().to(memory_format=torch.channels_last)
    for name, split in plan.splits.items():
        shape = (plan.num_views(name), len(split), backbone.feature_dim)
        arrays = map_split(split_path(plan.folder, name), shape, mode="r+")
        for view in range(plan.num_views(name)):
            mark = plan.folder / f"progress-{name}-{view}-{rank}-of-{jobs}"
            done = int(mark.read_text()) if mark.is_file() else 0
            loader = split.loader(
                batch_size=BATCH * jobs,
                training=view > 0,
                rank=rank,
                world_size=jobs,
                num_workers=max(1, (os.cpu_count() or 1) // jobs),
            )
            with closing(loader):
                for batch in loader.epoch(view, done):
                    ids = batch.sample_ids.numpy()
                    features = embed(backbone, batch.images)
                    _check_finite(features, ids, name)
                    arrays["features"][view, ids] = features
                    arrays["labels"][ids] = batch.labels
                    done += 1
                    if done % 16 == 0 or done == len(loader):
                        _note(mark, done, arrays)
                    if track is not None:
                        track(len(ids))


def _note(mark: Path, done: int, arrays: dict[str, Any]) -> None:
    """Write how many batches are done, once they are on disk."""
    for array in arrays.values():
        array.flush()
    with atomic_write(mark) as temporary:
        temporary.write_text(str(done))


@torch.inference_mode()
def embed(
    backbone: Backbone, images: Tensor
) -> "np.ndarray[Any, np.dtype[np.float16]]":
    """Return the features of images in half precision."""
    is_bf16 = machine_precision("cpu") == "bf16-mixed"
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
        features: Tensor = backbone(images)
    return features.half().numpy()


def _check_finite(features: Any, ids: Any, name: str) -> None:
    if not np.isfinite(features).all():
        row = int(ids[(~np.isfinite(features)).any(axis=1).argmax()])
        raise FloatingPointError(
            f"the features of image {row} of the {name} split are not finite in half "
            "precision. Other weights are needed."
        )


def _finish(plan: BankPlan, facts: dict[str, Any]) -> None:
    """Seal the files with checksums, and write what the bank holds."""
    for name, about in facts["splits"].items():
        shape = (about["views"], about["samples"], facts["feature_dim"])
        arrays = map_split(split_path(plan.folder, name), shape)
        about["checksum"] = split_checksum(arrays)
    write_json(plan.folder / BANK_FACTS, facts)
    for path in (plan.folder / "begun.json", *plan.folder.glob("progress-*")):
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
    plan = BankPlan(Path(), prepared(data, model), model)
    backbone = build_model_backbone(model, image_size=plan.data.image_size)
    facts = json.dumps(bank_facts(plan, backbone), sort_keys=True)
    folder = cache_folder() / hashlib.sha256(facts.encode()).hexdigest()[:16]
    if (folder / BANK_FACTS).is_file():
        return FeatureBank.load(folder)
    return make_bank(data, model, folder, track=track(plan.num_images))


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
            began, timed = time.perf_counter(), 0

            def advance(images: int) -> None:
                nonlocal timed
                bar.advance(task, images)
                seconds = time.perf_counter() - began
                timed += images
                if is_verbose and timed < TIMED_IMAGES <= timed + images:
                    rest = (num_images - timed) * seconds / timed
                    print_line(console, f"features: about {duration(rest)} to go")

            if is_verbose:
                text = f"features: {num_images:,} images go through the network once"
                print_line(console, text)
            return advance

        yield begin
