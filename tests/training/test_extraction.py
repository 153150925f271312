"""Features of images: as the network gives them, wherever it was interrupted."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tailshift as ts
from tailshift.config import ModelConfig
from tailshift.data.feature_files import map_split, split_path
from tailshift.data.features import FeatureCache
from tailshift.data.image_loader import BrokenImageWarning, FileLoader
from tailshift.data.images import Preparation, load_image
from tailshift.data.memory import Normalisation
from tailshift.data.own_forms import ImageFolder
from tailshift.models import TimmBackbone
from tailshift.models.pretrained import PUBLISHED, pixel_statistics
from tailshift.recipes import feature_settings
from tailshift.runs.directory import hold_lock
from tailshift.training import extraction, extraction_work
from tailshift.training.extraction import extract_features

TINY = "test_efficientnet"
COUNTS = {"cat": 12, "dog": 8, "owl": 5}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of grey and coloured images of various sizes and contrasts."""
    generator = np.random.default_rng(0)
    for c, (name, count) in enumerate(COUNTS.items()):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            shape = (30, 20 + 7 * i) if i % 2 else (30, 20 + 7 * i, 3)
            pixels = generator.normal(60 + 60 * c, generator.uniform(5, 60), shape)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(tmp_path / "photos" / name / f"{i:02}.png")
    return tmp_path / "photos"


def _save_weights(path: Path, change: Callable[[nn.Module], None]) -> Path:
    """Write a tiny network's weights as timm's files have them."""
    torch.manual_seed(0)
    network = TimmBackbone(TINY)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after a training
            module.running_mean = torch.randn_like(module.running_mean) / 3
            module.running_var = torch.rand_like(module.running_var) + 0.5
    change(network)
    torch.save(network.model.state_dict(), path)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return _save_weights(tmp_path / "tiny.pth", lambda network: None)


@pytest.fixture
def make(photos: Path, weights: Path, tmp_path: Path) -> Callable[..., FeatureCache]:
    """Make a bank of the photos, 32 pixels wide."""

    def bank(folder: str = "bank", **settings: Any) -> FeatureCache:
        options = {"weights": weights, "image_size": 32, **settings}
        data = options.pop("data", f"folder:{photos}")
        return extract_features(data, f"timm:{TINY}", tmp_path / folder, **options)

    return bank


@torch.no_grad()
def _reference(photos: Path, weights: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the features of each test image by its path: one by one, in float32."""
    network = TimmBackbone(TINY).eval()
    network.model.load_state_dict(torch.load(weights))
    mean, std, _ = pixel_statistics(TINY)
    normalise = Normalisation(mean, std)
    test = ImageFolder(path=str(photos)).load().test
    prepare = Preparation(32, fit="crop").evaluation()
    images: Any = test.images  # type: ignore[attr-defined] # a FileSplit's
    return {
        key: network(normalise(prepare(load_image(images, i)))[None])[0].numpy()
        for i, key in enumerate(test.keys())
    }


def test_features__are_those_of_the_network(
    make: Callable[..., FeatureCache], photos: Path, weights: Path
) -> None:
    split = make().data().test
    expected = np.stack(list(_reference(photos, weights).values()))
    found = split.take(torch.arange(len(split))).numpy()  # type: ignore[attr-defined]
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert expected.std(axis=0).max() > 0.01  # images differ


def test_features__views_vary_but_for_the_first(
    make: Callable[..., FeatureCache],
) -> None:
    one, many = make("one"), make("many", views=3)
    assert many.facts.splits["test"].views == 1
    first, *others = many.split("train").features
    assert torch.equal(first, one.split("train").features[0])
    assert all((view - first).abs().max() > 0.01 for view in others)
    assert not torch.equal(*others)


def test_features__known_bank_is_returned_as_it_is(
    make: Callable[..., FeatureCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    monkeypatch.setattr(extraction, "work", None)
    assert make().facts == first.facts


def test_features__closes_the_loaders_that_it_opens(
    make: Callable[..., FeatureCache], opened_loaders: list[FileLoader]
) -> None:
    make(views=2)
    assert len(opened_loaders) == 4  # the training images twice
    assert [loader for loader in opened_loaders if loader._workers is not None] == []


def _die_at(batch: int) -> Callable[..., Any]:
    """Return what computes features, and kills the process at a batch."""
    calls, embed = iter(range(batch)), extraction_work.embed

    def fatal(*arguments: Any) -> Any:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return embed(*arguments)

    return fatal


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_features__killed_and_resumed_are_the_same_bytes(
    make: Callable[..., FeatureCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction_work, "BATCH", 2)
    monkeypatch.setattr(extraction_work, "MARKED", 2)
    whole = make("whole")
    for batch in (3, 6, 2):  # in the training images, in the test, and at once
        if (child := os.fork()) == 0:
            monkeypatch.setattr(extraction_work, "embed", _die_at(batch))
            make("killed")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    computed: list[int] = []
    embed = extraction_work.embed

    def counted(network: nn.Module, images: torch.Tensor) -> Any:
        computed.append(len(images))
        return embed(network, images)

    monkeypatch.setattr(extraction_work, "embed", counted)
    resumed = make("killed")
    assert 0 < sum(computed) < sum(COUNTS.values()) / 2
    names = sorted(path.name for path in whole.directory.iterdir())
    assert names == sorted(path.name for path in resumed.directory.iterdir())
    for name in names:
        expected = (whole.directory / name).read_bytes()
        assert (resumed.directory / name).read_bytes() == expected, name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
@pytest.mark.parametrize("damaged", ["note", "features", "labels"])
def test_features__damaged_while_it_was_killed_are_the_same_bytes(
    make: Callable[..., FeatureCache], monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    monkeypatch.setattr(extraction_work, "BATCH", 2)
    monkeypatch.setattr(extraction_work, "MARKED", 2)
    whole = make("whole")
    folder = whole.directory.with_name("killed")
    if (child := os.fork()) == 0:
        monkeypatch.setattr(extraction_work, "embed", _die_at(5))
        make("killed")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    note = folder / "progress-train-0-0-of-1"
    if damaged == "note":
        done, total = note.read_text().split()
        note.write_text(f"{int(done) + 2} {total}")  # batches that were never computed
    else:
        shape = whole.split("train").features.shape
        array = map_split(split_path(folder, "train"), tuple(shape), mode="r+")[damaged]
        array.reshape(-1).view(np.uint8)[1] ^= 1
        array.flush()
    resumed = make("killed")
    for path in whole.directory.iterdir():
        assert (resumed.directory / path.name).read_bytes() == path.read_bytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_features__cut_short_while_it_was_killed_are_refused(
    make: Callable[..., FeatureCache],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """NumPy made it longer again, with a hole that a full disk cannot fill."""
    if (child := os.fork()) == 0:
        monkeypatch.setattr(extraction_work, "embed", _die_at(0))
        make("killed")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    path = split_path(tmp_path / "killed", "train")
    os.truncate(path, size := path.stat().st_size // 2)
    with pytest.raises(ValueError, match="train") as error:
        make("killed")
    assert str(error.value).startswith(f"{path} is damaged: it is cut short, or no ")
    assert path.stat().st_size == size


@pytest.mark.filterwarnings("always::tailshift.data.image_loader.BrokenImageWarning")
def test_features__of_two_processes_are_those_of_one(
    make: Callable[..., FeatureCache], photos: Path
) -> None:
    (photos / "cat" / "00.png").write_text("no image")
    with pytest.warns(BrokenImageWarning) as told:
        one = make("one", skip_broken=True)
    counts: list[int] = []
    data = ImageFolder(path=str(photos), skip_broken=True).load()
    with pytest.warns(BrokenImageWarning) as told_by_two:
        two = extraction.make_bank(
            data,
            ModelConfig(**one.facts.model),
            one.directory.with_name("two"),
            jobs=2,
            track=lambda num_images: counts.append,
        )
    assert [str(w.message) for w in told_by_two] == [str(w.message) for w in told]
    assert sum(counts) == sum(COUNTS.values()) - 1
    for name in one.facts.splits:
        a, b = one.split(name), two.split(name)
        assert torch.equal(a.labels, b.labels)
        rows = torch.arange(len(a))
        assert torch.allclose(a.take(rows), b.take(rows), atol=1e-4)


def test_worker__sends_what_is_wrong(
    make: Callable[..., FeatureCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction_work.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(extraction_work, "end_with_parent", lambda: None)

    class Answers(list[BaseException]):
        put = list.append

    plan, answers = _broken_plan(make), Answers()
    extraction_work._worker(0, 1, plan, TimmBackbone(TINY), [0], answers)
    [error] = answers
    assert isinstance(error, FileNotFoundError)
    assert str(error) == f"the feature cache {plan.folder} has no train.safetensors."


def _broken_plan(make: Callable[..., FeatureCache]) -> extraction_work.BankPlan:
    bank = make()
    data = bank.data()
    split_path(bank.directory, "train").unlink()
    model = ModelConfig(**bank.facts.model)
    return extraction_work.BankPlan(bank.directory, data, model)


def test_features__waits_for_another_process(
    make: Callable[..., FeatureCache],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = make().directory
    other = hold_lock(folder)
    other.__enter__()
    monkeypatch.setattr(
        extraction.time, "sleep", lambda seconds: other.__exit__(None, None, None)
    )
    assert make().directory == folder
    told = capfd.readouterr().err
    assert told == f"features: another process makes {folder}; waiting for it\n"


def test_features__image_that_cannot_be_read(
    make: Callable[..., FeatureCache], photos: Path
) -> None:
    path = photos / "dog" / "03.png"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="dog") as error:
        make()
    assert str(error.value) == (
        f"`{path}` cannot be read (image file is truncated). Fetch it again, or skip "
        "such images with data.skip_broken=true."
    )
    with pytest.warns(BrokenImageWarning):
        bank = make(skip_broken=True, force=True)
    data = bank.data()
    splits = [split for split in (data.train, data.val, data.test) if split]
    assert sum(len(split) for split in splits) == sum(COUNTS.values()) - 1


@pytest.mark.filterwarnings("ignore::tailshift.data.image_loader.BrokenImageWarning")
def test_features__class_without_images(
    make: Callable[..., FeatureCache], photos: Path, tmp_path: Path
) -> None:
    for path in (photos / "owl").iterdir():
        path.write_text("no image")
    with pytest.raises(ValueError, match="owl") as error:
        make(skip_broken=True)
    assert str(error.value) == (
        f"`{tmp_path / 'bank'}` must have a training image of every class, but has "
        "none of 'owl'."
    )


def _no_number(network: nn.Module) -> None:
    next(network.parameters()).data.flatten()[0] = torch.nan


def test_features__not_finite(
    make: Callable[..., FeatureCache], tmp_path: Path
) -> None:
    broken = _save_weights(tmp_path / "nan.pth", _no_number)
    with pytest.raises(FloatingPointError) as error:
        make(weights=broken)
    assert str(error.value) == (
        "the features of image 0 of the train split are not finite. Other weights are "
        "needed."
    )


def _wider(network: nn.Module) -> None:
    network.model.conv_stem = nn.Conv2d(3, 40, 3)  # type: ignore[union-attr]


def test_features__weights_of_another_network(
    make: Callable[..., FeatureCache], tmp_path: Path
) -> None:
    other = _save_weights(tmp_path / "other.pth", _wider)
    with pytest.raises(ValueError, match="another network") as error:
        make(weights=other)
    assert str(error.value) == (
        f"{other} holds the weights of another network: model.conv_stem.weight has "
        "shape (40, 3, 3, 3) there and (24, 3, 3, 3) here."
    )


@pytest.mark.parametrize("change", ["network", "images", "views"])
def test_features__other_than_the_bank_there(
    make: Callable[..., FeatureCache], tmp_path: Path, photos: Path, change: str
) -> None:
    make()
    settings: dict[str, Any] = {"views": 2}
    if change == "network":
        settings = {"weights": _save_weights(tmp_path / "b.pth", _shifted)}
    if change == "images":
        (photos / "cat" / "00.png").rename(photos / "cat" / "99.png")
        settings = {}
    with pytest.raises(FileExistsError) as error:
        make(**settings)
    assert str(error.value) == (
        f"{tmp_path / 'bank'} holds features of other images, or of another network. "
        "Replace them (--force), or name another folder."
    )
    assert make(**settings, force=True).data()


def _shifted(network: nn.Module) -> None:
    next(network.parameters()).data += 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"views": 0}, "`views` must be >= 1, but is 0."),
        ({"jobs": 0}, "`jobs` must be >= 1, but is 0."),
        (
            {"data": "digits_lt"},
            "a pretrained network takes colour images, but those of digits_lt have 1 "
            "channel. Train a network for them: drop --features.",
        ),
    ],
)
def test_features__bad_arguments(
    make: Callable[..., FeatureCache], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        make(**settings)
    assert str(error.value) == sentence


def test_features__unknown_network(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(ValueError, match="lite1") as error:
        extract_features(f"folder:{photos}", "lite1", tmp_path / "bank")
    assert str(error.value) == (
        "features come from a feature cache or from a network, lite0 or timm:NAME, but "
        "'lite1' is neither."
    )


def test_features__folder_of_something_else(
    make: Callable[..., FeatureCache], photos: Path
) -> None:
    with pytest.raises(FileExistsError) as error:
        make("photos")
    assert str(error.value) == (
        f"`output` {photos} exists and is not a feature cache, so that nothing in it "
        "is replaced. Name another folder."
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_features__folder_that_cannot_be_made(
    make: Callable[..., FeatureCache],
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        make("/proc/x")
    assert str(error.value) == (
        "`output` must lie in a folder that can be made, but /proc/x cannot be made "
        "(No such file or directory). Name another."
    )


# --- runs on features --------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tailshift" / "features"


def _probs(run: ts.Run, paths: list[Path]) -> dict[str, dict[str, float]]:
    """Return the probability of each class for each image, by its path."""
    found = {}
    for row in ts.predict(run, paths).rows:
        names = [key for key in row if key in ("predicted", "class_2", "class_3")]
        shares = ["probability" + n.removeprefix("class") for n in names]
        shares[0] = "probability"
        found[str(row["path"])] = {
            str(row[name]): float(row[share])
            for name, share in zip(names, shares, strict=True)
        }
    return found


def _assert_images_answer_as_the_bank(run: ts.Run, photos: Path, atol: float) -> None:
    keys = ImageFolder(path=str(photos)).load().test.keys()
    answers = _probs(run, [photos / key for key in keys])
    logits = run.predictions("test").logits.double()
    shift = run.source_prior.log() - run.logit_prior.log()
    expected = (logits + shift).softmax(dim=1)
    for key, row in zip(keys, expected, strict=True):
        for name, share in zip(run.class_names, row.tolist(), strict=True):
            assert abs(answers[str(photos / key)][name] - share) < atol


@pytest.mark.parametrize("method", ["lade", "tau_norm"])
def test_train__on_a_bank_predicts_from_images(
    make: Callable[..., FeatureCache], photos: Path, tmp_path: Path, method: str
) -> None:
    bank = make()
    settings = [*feature_settings(str(bank.directory)), f"method.name={method}"]
    config = ts.load_recipe("own_images", settings)
    run = ts.train(config, output=tmp_path / "run")
    assert run.is_finished
    _assert_images_answer_as_the_bank(run, photos, atol=1e-3)


@pytest.mark.skipif(PUBLISHED["lite0"].path is None, reason="needs the extra")
def test_train__lite0_predicts_from_images(
    photos: Path, tmp_path: Path, cache: Path
) -> None:
    """Real weights: bf16 would move probabilities by several percent here."""
    settings = [f"data.path={photos}", *feature_settings("lite0")]
    config = ts.load_recipe("own_images", settings)
    run = ts.train(config, output=tmp_path / "run")
    assert run.config.model.image_size == 128
    _assert_images_answer_as_the_bank(run, photos, atol=1e-3)
    [bank] = cache.iterdir()
    made = (bank / "train.safetensors").stat().st_mtime_ns
    again = ts.train(config, output=tmp_path / "again")
    assert (bank / "train.safetensors").stat().st_mtime_ns == made  # found again
    for split in ("val", "test"):
        a, b = (r.predictions(split).logits for r in (run, again))
        assert torch.equal(a, b)


def test_train__bank_of_another_network(
    make: Callable[..., FeatureCache], tmp_path: Path
) -> None:
    settings = [*make().settings, "model.image_size=64"]
    with pytest.raises(ValueError, match="image_size") as error:
        ts.train(ts.load_recipe("own_images", settings), output=tmp_path / "run")
    assert str(error.value) == (
        "the features were made with model.image_size = 32, but it is 64 here. Name "
        "the bank with --features, or make another."
    )


def test_train__bank_of_other_weights(
    make: Callable[..., FeatureCache], tmp_path: Path, weights: Path
) -> None:
    settings = make().settings
    _save_weights(weights, _shifted)
    with pytest.raises(ValueError, match="other weights") as error:
        ts.train(ts.load_recipe("own_images", settings), output=tmp_path / "run")
    assert str(error.value) == (
        f"the features were made with other weights of timm:{TINY} than {weights} has "
        "now. Make them again with `tailshift features --force`."
    )


def test_train__features_made_elsewhere_read_no_images(
    tmp_path: Path, photos: Path
) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 1100)), np.arange(40) % 2
    x[:, :50] += 3 * y[:, None]
    bank = FeatureCache.from_arrays(tmp_path / "bank", train=(x, y))
    settings = [*bank.settings, "optim.name=lbfgs", "optim.lr=0.1"]
    run = ts.train(ts.load_recipe("own_images", settings), output=tmp_path / "run")
    test = run.predictions("test")
    assert torch.equal(test.logits.argmax(dim=1), test.labels)
    sentence = (
        f"{run.directory} must have a network to read images, but was trained on "
        "features that were made elsewhere. `tailshift features` makes them here."
    )
    for use in (lambda: ts.predict(run, photos), lambda: ts.export(run, "a.onnx")):
        with pytest.raises(ValueError, match="elsewhere") as error:
            use()
        assert str(error.value) == sentence
