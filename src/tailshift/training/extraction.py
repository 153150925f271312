"""Feature banks made from images."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from tailshift.config import ModelConfig
from tailshift.data import Dataset, FeatureSplit, LongTailedData
from tailshift.data.feature_files import (
    create_split,
    map_split,
    split_checksum,
    split_path,
)
from tailshift.data.features import BANK_FACTS, FeatureCache
from tailshift.data.image_split import FileSplit
from tailshift.data.own_images import check_every_name
from tailshift.files import make_folder
from tailshift.models import Backbone, pretrained
from tailshift.models.pretrained import named_network
from tailshift.recipes import dataset_of
from tailshift.runs.directory import LOCK, hold_lock
from tailshift.runs.network import build_model_backbone
from tailshift.storage import read_json, write_json
from tailshift.training.extraction_network import weights_fingerprint
from tailshift.training.extraction_progress import extraction_progress
from tailshift.training.extraction_work import (
    BankPlan,
    Told,
    num_done,
    work,
    work_together,
)
from tailshift.training.progress import print_line

BEGUN = "begun.json"
"""What a bank that is not finished is to hold."""

WAIT_SECONDS = 1.0
"""Time between two looks at whether another process has finished a bank."""

FEATURE_FIELDS = ("name", "pretrained", "weights", "frozen", "image_size")
"""Settings of a network that its features depend on."""


def extract_features(
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
) -> FeatureCache:
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
) -> FeatureCache:
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
                bank = FeatureCache.load(plan.folder)
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
    return FeatureCache.load(plan.folder)


def _check_folder(folder: Path) -> None:
    """Refuse a folder with files that are no bank's: nothing in it is replaced."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"`output` must be a folder, but {folder} is a file. Name another."
        )
    is_bank = any((folder / name).exists() for name in (BANK_FACTS, BEGUN, LOCK))
    if folder.is_dir() and any(folder.iterdir()) and not is_bank:
        raise FileExistsError(
            f"`output` {folder} exists and is not a feature cache, so that nothing in "
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
) -> FeatureCache:
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
