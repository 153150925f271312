"""Feature banks: what is written is read, mapped into memory, refused if damaged."""

import gc
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tailshift.data.feature_files import create_split, split_checksum, split_path
from tailshift.data.features import FeatureCache, write_bank
from tailshift.storage import read_json, write_json

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.array(["dog", "cat", "dog", "cat"] * 3)


@pytest.fixture
def bank(tmp_path: Path) -> FeatureCache:
    return FeatureCache.from_arrays(
        tmp_path / "bank", train=(X[:8], Y[:8]), test=(X[8:], Y[8:])
    )


def test_from_arrays__keeps_features_labels_and_names(bank: FeatureCache) -> None:
    data = bank.data()
    assert data.class_names == ("cat", "dog")
    assert data.val is None
    assert torch.equal(data.train.labels, torch.tensor([1, 0] * 4))
    batch = next(data.test.loader(batch_size=9, training=False).epoch(0))
    assert torch.equal(batch.images, torch.from_numpy(X[8:]))


def test_from_arrays__holds_a_fifth_of_each_class_out(tmp_path: Path) -> None:
    data = FeatureCache.from_arrays(tmp_path, train=(X, Y)).data()
    assert data.class_counts.tolist() == [5, 5]
    assert torch.bincount(data.test.labels).tolist() == [1, 1]
    rows = torch.cat(
        [data.train.take(torch.arange(10)), data.test.take(torch.arange(2))]
    )
    assert torch.equal(rows.sort(dim=0).values, torch.from_numpy(X).sort(dim=0).values)


def test_file__is_what_safetensors_reads(bank: FeatureCache) -> None:
    stored = load_file(split_path(bank.directory, "train"))
    assert stored.keys() == {"features", "labels"}
    assert np.array_equal(stored["features"], X[None, :8])
    assert stored["labels"].tolist() == [1, 0] * 4


def test_split__leaves_skipped_samples_out(bank: FeatureCache) -> None:
    arrays = create_split(split_path(bank.directory, "train"), (1, 8, 4))
    arrays["features"][:], arrays["labels"][:] = X[:8], [1, 0, -1, 0, 1, 0, 1, -1]
    _seal(bank, split_checksum(arrays))
    split = FeatureCache.load(bank.directory).split("train")
    assert split.labels.tolist() == [1, 0, 0, 1, 0, 1]
    assert torch.equal(
        split.take(torch.arange(6)), torch.from_numpy(X[[0, 1, 3, 4, 5, 6]])
    )


def _seal(bank: FeatureCache, checksum: str) -> None:
    facts = read_json(bank.directory / "bank.json")
    facts["splits"]["train"]["checksum"] = checksum
    write_json(bank.directory / "bank.json", facts)


def test_loader__draws_each_view_in_training(tmp_path: Path) -> None:
    bank = FeatureCache.from_arrays(tmp_path / "a", train=(X, Y), test=(X, Y))
    split = bank.split("train")
    views = torch.stack([torch.full((12, 4), float(v)) for v in range(3)])
    many = type(split)(views, split.labels)
    drawn = [
        int(batch.images[i, 0])
        for epoch in range(40)
        for batch in many.loader(batch_size=12, training=True).epoch(epoch)
        for i in range(12)
    ]
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert np.abs(shares - 1 / 3).max() < 0.08  # sd 0.02
    [plain] = many.loader(batch_size=12, training=False).epoch(3)
    assert not plain.images.any()


LIMITED = """
import resource, sys
import torch
from tailshift.data.features import FeatureCache
torch.zeros(1)
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + 64 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
train = FeatureCache.load(sys.argv[1]).data().train
print(sum(len(b.labels) for b in train.loader(batch_size=256, training=True).epoch(0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_bank__may_be_larger_than_memory(tmp_path: Path) -> None:
    """256 MB of features are read in a process that may have 64 MB of its own."""
    shape = (1, 2**15, 2048)
    facts = FeatureCache.from_arrays(tmp_path / "a", train=(X, Y), test=(X, Y)).facts
    bank = FeatureCache(tmp_path / "a", facts)
    arrays = create_split(split_path(tmp_path / "a", "train"), shape)
    tiny = create_split(split_path(tmp_path / "a", "test"), (1, 2, 2048))
    stored = read_json(tmp_path / "a" / "bank.json") | {"feature_dim": 2048}
    for name, part in (("train", arrays), ("test", tiny)):
        part["labels"][:] = np.arange(len(part["labels"])) % 2
        about = {"samples": len(part["labels"]), "checksum": split_checksum(part)}
        stored["splits"][name] |= about
    write_json(bank.directory / "bank.json", stored)
    command = [sys.executable, "-c", LIMITED, str(bank.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{2**15}\n", "")


def test_load__cut_short(bank: FeatureCache) -> None:
    path = split_path(bank.directory, "train")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut short") as error:
        FeatureCache.load(bank.directory)
    assert str(error.value) == (
        f"{path} is damaged: it is cut short, or no features of shape (1, 8, 4). Make "
        "it again with `tailshift features --force`."
    )


def test_load__not_finished(bank: FeatureCache) -> None:
    (bank.directory / "bank.json").unlink()
    with pytest.raises(FileNotFoundError) as error:
        FeatureCache.load(bank.directory)
    assert str(error.value) == (
        f"{bank.directory} is not a feature cache: it has no bank.json. `tailshift "
        "features` makes one, and finishes one that was interrupted."
    )


def test_load__without_a_split(bank: FeatureCache) -> None:
    split_path(bank.directory, "test").unlink()
    with pytest.raises(FileNotFoundError) as error:
        FeatureCache.load(bank.directory)
    assert str(error.value) == (
        f"the feature cache {bank.directory} has no test.safetensors."
    )


def test_data__changed_byte(bank: FeatureCache) -> None:
    path = split_path(bank.directory, "train")
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum") as error:
        FeatureCache.load(bank.directory).data()
    assert str(error.value) == (
        f"{path} is damaged: its checksum does not fit its content. Make it again with "
        "`tailshift features --force`."
    )


def test_data__not_finite(bank: FeatureCache) -> None:
    path = split_path(bank.directory, "train")
    arrays = create_split(path, (1, 8, 4))
    arrays["features"][0, 5, 2] = np.nan
    _seal(bank, split_checksum(arrays))
    with pytest.raises(ValueError, match="finite") as error:
        FeatureCache.load(bank.directory).data()
    assert str(error.value) == (
        f"{path} must have finite features, but those of sample 5 are not. Make it "
        "again with `tailshift features --force`."
    )


def test_from_file__one_npz_file_with_splits(tmp_path: Path) -> None:
    split = ["train"] * 8 + ["Valid"] * 2 + ["test"] * 2
    np.savez(tmp_path / "a.npz", features=X, labels=Y, split=split)
    data = FeatureCache.from_file(tmp_path / "bank", tmp_path / "a.npz").data()
    assert data.val is not None
    assert [len(s) for s in (data.train, data.val, data.test)] == [8, 2, 2]
    assert torch.equal(data.val.take(torch.arange(2)), torch.from_numpy(X[8:10]))


def test_from_file__two_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.arange(12) % 2)
    bank = FeatureCache.from_file(
        tmp_path / "bank", tmp_path / "x.npy", tmp_path / "y.npy"
    )
    assert bank.facts.class_names == ("0", "1")
    assert len(bank.data().train) == 10


NAN = np.where(np.arange(12)[:, None] == 3, np.nan, X)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"labels": Y},
            "{file} must come with features, but has labels. Save them in one .npz "
            "file as `features` and `labels`, or name a file of labels (--labels).",
        ),
        (
            {"features": X, "labels": Y[:5]},
            "{file} must have numbers of shape (N, d) as `features` and N `labels`, "
            "but has float32 of shape (12, 4) and (5,).",
        ),
        (
            {"features": X, "labels": np.array(3.0)},
            "{file} must have numbers of shape (N, d) as `features` and N `labels`, "
            "but has float32 of shape (12, 4) and ().",
        ),
        (
            {"features": X.astype("M8[s]"), "labels": Y, "split": np.array("train")},
            "{file} must have numbers of shape (N, d) as `features` and N `labels`, "
            "but has datetime64[s] of shape (12, 4) and (12,).",
        ),
        (
            {"features": X, "labels": Y, "split": np.array(0.5)},
            "`split` in {file} must be train, val or test for each of the 12 samples, "
            "but is not.",
        ),
        (
            {"features": NAN, "labels": Y},
            "`train` must have finite features, but those of sample 3 are not.",
        ),
        (
            {"features": X, "labels": Y, "split": ["train"] * 11 + ["tset"]},
            "`split` in {file} must be train, val or test for each of the 12 samples, "
            "but is not.",
        ),
        (
            {"features": X, "labels": Y, "split": ["test"] * 12},
            "`split` in {file} must name train, but never does.",
        ),
        (
            {"features": X, "labels": Y, "split": ["train", "test"] * 6},
            "`{bank}` must have a training image of every class, but has none of "
            "'cat'.",
        ),
    ],
)
def test_from_file__bad_arrays(
    tmp_path: Path, arrays: dict[str, object], sentence: str
) -> None:
    file, bank = tmp_path / "a.npz", tmp_path / "bank"
    np.savez(file, **arrays)  # type: ignore[arg-type] # lists are arrays too
    with pytest.raises(ValueError, match="must") as error:
        FeatureCache.from_file(bank, file)
    assert str(error.value) == sentence.format(file=file, bank=bank)
    assert not (bank / "bank.json").exists()


def test_from_file__no_arrays(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError) as missing:
        FeatureCache.from_file(tmp_path / "bank", file)
    assert str(missing.value) == f"there is no file `{file}`."
    file.write_text("no arrays")
    with pytest.raises(ValueError, match="NumPy") as error:
        FeatureCache.from_file(tmp_path / "bank", file)
    assert str(error.value) == f"{file} must be arrays saved by NumPy, but is not."


def _lying_npy() -> bytes:
    """Return an array of 12 features whose header declares 4 · 10¹⁴."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**14, 4)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + X[:3].tobytes()


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_from_file__header_that_lies(name: str, tmp_path: Path) -> None:
    file, labels = tmp_path / name, tmp_path / "labels.npy"
    np.save(labels, Y)
    if name == "a.npz":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("features.npy", _lying_npy())
    else:
        file.write_bytes(_lying_npy())
    with pytest.raises(ValueError, match="NumPy") as error:
        FeatureCache.from_file(tmp_path / "bank", file, labels)
    assert str(error.value) == f"{file} must be arrays saved by NumPy, but is not."


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_from_file__unpacks_to_more_than_the_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive is one whatever its name; NumPy goes by the content too."""
    file = tmp_path / name
    with file.open("wb") as stream:
        np.savez_compressed(stream, features=np.zeros((10**8, 1), np.float16))
    monkeypatch.setattr("tailshift.files.free_memory", lambda: 2 * 10**8)
    with pytest.raises(ValueError, match="unpacks") as error:
        FeatureCache.from_file(tmp_path / "bank", file)
    assert str(error.value) == (
        f"{file} unpacks to 0.2 GB, but at most 0.1 GB are read, half of the free "
        "memory. Save each array as an .npy file, which is mapped into memory."
    )


def test_from_file__a_broken_archive_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(ValueError, match="NumPy"):
        FeatureCache.from_file(tmp_path / "bank", file)
    gc.collect()  # which warns of a file that is open, and a warning is an error


def test_from_file__a_lone_array_whatever_its_name(tmp_path: Path) -> None:
    with (tmp_path / "x.npz").open("wb") as stream:
        np.save(stream, X)
    np.savez(tmp_path / "y.npz", labels=Y)
    files = (tmp_path / "x.npz", tmp_path / "y.npz")
    assert len(FeatureCache.from_file(tmp_path / "bank", *files).data().train) == 10


def test_write_bank__does_not_replace_another(bank: FeatureCache) -> None:
    with pytest.raises(FileExistsError) as error:
        write_bank(bank.directory, {}, {})
    assert str(error.value) == (
        f"{bank.directory} holds a feature cache. Name another folder."
    )


@pytest.mark.parametrize("labels", [np.array(3.0), np.zeros((12, 2))])
def test_from_arrays__labels_are_one_a_sample(
    labels: np.ndarray, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="N labels") as error:
        FeatureCache.from_arrays(tmp_path / "bank", train=(X, labels))
    assert str(error.value) == (
        "`train` must be features of shape (N, d), floating point, and N labels, but "
        f"has torch.float32 of shape (12, 4) and labels of shape {labels.shape}."
    )


@pytest.mark.parametrize("name", ["train", "test"])
def test_load__names_both_splits(bank: FeatureCache, name: str) -> None:
    facts = read_json(bank.directory / "bank.json")
    del facts["splits"][name]
    write_json(bank.directory / "bank.json", facts)
    with pytest.raises(ValueError, match="splits") as error:
        FeatureCache.load(bank.directory)
    assert str(error.value) == (
        f"{bank.directory / 'bank.json'} must name the splits train and test, but "
        f"{name} is missing. Make it again with `tailshift features --force`."
    )


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"[" * 3000,
        b'{"features": 3}',
        b'{"features": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 1]}}',
        b'{"features": {"dtype": "F32", "shape": [0], "data_offsets": [1e30, 1e30]}}',
        b'{"features": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
    ],
)
def test_load__a_header_that_says_nothing_sound(
    bank: FeatureCache, header: bytes
) -> None:
    path = split_path(bank.directory, "train")
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(200))
    with pytest.raises(ValueError, match="damaged") as error:
        FeatureCache.load(bank.directory)
    assert str(error.value) == (
        f"{path} is damaged: it is cut short, or no features of shape (1, 8, 4). Make "
        "it again with `tailshift features --force`."
    )
