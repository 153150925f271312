"""Predictions on disk: whole files, damaged ones, and archives made elsewhere."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tailshift.predictions import Predictions

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, -torch.inf, 4.0]])
LABELS = torch.tensor([0, 2])
COUNTS = torch.tensor([6, 3, 1])
PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
NAMES = ("kea", "tūī", 'a "quoted" one')


def _predictions(**changes):
    fields = {
        "logits": LOGITS,
        "labels": LABELS,
        "source_counts": COUNTS,
        "logit_prior": PRIOR,
        "class_names": NAMES,
    }
    return Predictions(**(fields | changes))


def _assert_same(left: Predictions, right: Predictions):
    for key in ("logits", "labels", "source_counts", "logit_prior"):
        a, b = getattr(left, key), getattr(right, key)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert left.class_names == right.class_names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_load__returns_what_was_saved(tmp_path, dtype):
    predictions = _predictions(logits=LOGITS.to(dtype))
    predictions.save(tmp_path / "test.safetensors")
    _assert_same(Predictions.load(tmp_path / "test.safetensors"), predictions)


def test_load__without_priors(tmp_path):
    predictions = Predictions(LOGITS, LABELS)
    predictions.save(str(tmp_path / "test.safetensors"))
    _assert_same(Predictions.load(str(tmp_path / "test.safetensors")), predictions)


def test_save__logits_laid_out_by_column(tmp_path):
    predictions = _predictions(logits=LOGITS.T.contiguous().T)
    predictions.save(tmp_path / "test.safetensors")
    _assert_same(Predictions.load(tmp_path / "test.safetensors"), predictions)


def test_save__file_is_plain_safetensors(tmp_path):
    _predictions().save(tmp_path / "test.safetensors")
    with safe_open(tmp_path / "test.safetensors", framework="pt") as file:
        keys, metadata = set(file.keys()), file.metadata()
    assert keys == {"logits", "labels", "source_counts", "logit_prior"}
    assert metadata["tailshift_predictions"] == "2"
    assert json.loads(metadata["class_names"]) == list(NAMES)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's /proc")
def test_load__maps_the_logits_into_memory(tmp_path):
    path = tmp_path / "test.safetensors"
    _predictions().save(path)
    loaded = Predictions.load(path)
    address = loaded.logits.data_ptr()
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    assert any(start <= address < end for start, end in ranges)


def test_save__onto_the_file_it_was_loaded_from(tmp_path):
    path = tmp_path / "test.safetensors"
    _predictions().save(path)
    loaded = Predictions.load(path)
    loaded.half().save(path, overwrite=True)
    _assert_same(loaded, _predictions())
    assert Predictions.load(path).logits.dtype == torch.float16


def test_save__leaves_one_file_as_readable_as_any_other(tmp_path):
    path, other = tmp_path / "test.safetensors", tmp_path / "other"
    _predictions().save(path)
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_save__failing_half_way_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "test.safetensors"
    _predictions().save(path)
    before = path.read_bytes()

    def full_disk(tensors, filename, metadata):
        Path(filename).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        _predictions().half().save(path, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_save__never_overwrites_unasked(tmp_path):
    path = tmp_path / "test.safetensors"
    path.write_text("precious")
    with pytest.raises(FileExistsError) as error:
        _predictions().save(path)
    assert str(error.value) == (
        f"{path} exists and is not overwritten. Give overwrite=True to replace it."
    )
    assert path.read_text() == "precious"
    _predictions().save(path, overwrite=True)
    _assert_same(Predictions.load(path), _predictions())


def test_save__refuses_a_missing_folder_and_npz(tmp_path):
    path = tmp_path / "nowhere" / "test.safetensors"
    with pytest.raises(FileNotFoundError) as missing:
        _predictions().save(path)
    assert str(missing.value) == f"There is no folder {path.parent} to write {path} in."
    with pytest.raises(ValueError, match="safetensors") as npz:
        _predictions().save(tmp_path / "test.npz")
    assert str(npz.value) == (
        f"Predictions are written as safetensors, but {tmp_path / 'test.npz'} "
        "ends in .npz."
    )


def test_load__missing_file(tmp_path):
    path = tmp_path / "test.safetensors"
    with pytest.raises(FileNotFoundError) as error:
        Predictions.load(path)
    assert str(error.value) == (
        f"There is no predictions file {path}. Write one with Predictions.save(path)."
    )


@pytest.mark.parametrize("damage", ["cut", "cut header", "empty", "text", "longer"])
def test_load__damaged_safetensors(tmp_path, damage):
    path = tmp_path / "test.safetensors"
    _predictions().save(path)
    content = path.read_bytes()
    damaged = {
        "cut": content[:-1],
        "cut header": content[:40],
        "empty": b"",
        "text": b"logits,labels\n1,2\n" * 20,
        "longer": content + b"1",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match="cut short") as error:
        Predictions.load(path)
    assert str(error.value) == f"{path} is no safetensors file or is cut short."


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"labels": LABELS}, {}, "PATH cannot be used: it does not hold `logits`."),
        ({"logits": LOGITS}, {}, "PATH cannot be used: it does not hold `labels`."),
        (
            {"logits": LOGITS, "label": LABELS},
            {},
            "PATH cannot be used: unknown entry 'label'; did you mean 'labels'? "
            "Known: logits, labels, source_counts, logit_prior, full_counts, "
            "class_names.",
        ),
        (
            {"probs": LOGITS.softmax(1), "labels": LABELS},
            {},
            "PATH cannot be used: unknown entry 'probs'; "
            "Known: logits, labels, source_counts, logit_prior, full_counts, "
            "class_names.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"class_names": '["kea", "tui"]'},
            "PATH cannot be used: "
            "`class_names` has 2 names but `logits` has 3 classes.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"class_names": "kea, tui"},
            "PATH has class names that are not a JSON list of strings.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"class_names": "[1, 2, 3]"},
            "PATH has class names that are not a JSON list of strings.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"tailshift_predictions": "3"},
            "PATH is of format version '3', but this tailshift reads version 2.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"tailshift_predictions": "2"},
            "PATH was changed: its checksum is gone.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS},
            {"checksum": "00000000"},
            "PATH is no safetensors file or was changed.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS + 1},
            {},
            "PATH cannot be used: `labels` must lie in 0..2, "
            "but label 1 (counted from 0) is 3.",
        ),
        (
            {"logits": LOGITS, "labels": LABELS.float()},
            {},
            "PATH cannot be used: `labels` must be integers, but are torch.float32.",
        ),
    ],
)
def test_load__wrong_safetensors(tmp_path, tensors, metadata, message):
    path = tmp_path / "test.safetensors"
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"test\.safetensors") as error:
        Predictions.load(path)
    assert str(error.value) == message.replace("PATH", str(path))


def test_load__safetensors_made_elsewhere(tmp_path):
    path = tmp_path / "test.safetensors"
    save_file({"logits": LOGITS, "labels": LABELS.to(torch.int32)}, path)
    _assert_same(Predictions.load(path), Predictions(LOGITS, LABELS))


def test_load__npz_of_logits(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(
        path,
        logits=LOGITS.numpy(),
        labels=LABELS.numpy(),
        source_counts=COUNTS.numpy(),
        logit_prior=PRIOR.numpy(),
        class_names=np.array(NAMES),
    )
    _assert_same(Predictions.load(path), _predictions())


def test_load__npz_of_probs(tmp_path):
    path = tmp_path / "test.NPZ"
    probs = LOGITS.double().softmax(dim=1)
    with path.open("wb") as file:
        np.savez_compressed(file, probs=probs.numpy(), labels=LABELS.numpy())
    loaded = Predictions.load(path)
    torch.testing.assert_close(loaded.logits, LOGITS.log_softmax(dim=1))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"labels": LABELS.numpy()},
            "PATH cannot be used: it does not hold `logits` or `probs`.",
        ),
        (
            {"logits": LOGITS.numpy()},
            "PATH cannot be used: it does not hold `labels`.",
        ),
        (
            {"logits": LOGITS.numpy(), "probs": LOGITS.numpy()},
            "PATH cannot be used: it holds both `logits` and `probs`; "
            "keep one of them.",
        ),
        (
            {
                "logits": LOGITS.numpy(),
                "labels": LABELS.numpy(),
                "source_count": COUNTS,
            },
            "PATH cannot be used: unknown entry 'source_count'; "
            "did you mean 'source_counts'? Known: logits, labels, source_counts, "
            "logit_prior, full_counts, class_names, probs.",
        ),
        (
            {"probs": LOGITS.numpy()[:1], "labels": LABELS.numpy()[:1]},
            "PATH cannot be used: `probs` must lie in [0, 1], but holds 2. "
            "Are these logits?",
        ),
        (
            {"logits": LOGITS.numpy(), "labels": np.array([0, None])},
            "PATH holds pickled objects, which are not read; "
            "save plain arrays of numbers, and class names as strings.",
        ),
        (
            {
                "logits": LOGITS.numpy(),
                "labels": LABELS.numpy(),
                "class_names": np.array(["kea", "tui"]),
            },
            "PATH cannot be used: "
            "`class_names` has 2 names but `logits` has 3 classes.",
        ),
    ],
)
def test_load__wrong_npz(tmp_path, arrays, message):
    path = tmp_path / "test.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"test\.npz") as error:
        Predictions.load(path)
    assert str(error.value) == message.replace("PATH", str(path))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped", "lone array"])
def test_load__damaged_npz(tmp_path, damage):
    path = tmp_path / "test.npz"
    np.savez_compressed(
        path, logits=torch.randn(90, 9).numpy(), labels=np.zeros(90, int)
    )
    content = path.read_bytes()
    damaged = {
        "cut": content[:-20],
        "empty": b"",
        "text": b"logits,labels\n",
        "flipped": content[:200] + bytes(50) + content[250:],
    }
    if damage == "lone array":
        with path.open("wb") as file:
            np.save(file, LOGITS.numpy())
    else:
        path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match="cut short") as error:
        Predictions.load(path)
    assert str(error.value) == f"{path} is no .npz archive or is cut short."


def test_load__npz_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    """A megabyte on disk becomes 200 in memory: it is refused before it is read."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, logits=np.zeros((10**8, 1), np.float16))
    monkeypatch.setattr("tailshift.files.free_memory", lambda: 2 * 10**8)
    with pytest.raises(ValueError, match="unpacks") as error:
        Predictions.load(path)
    assert str(error.value) == (
        f"{path} unpacks to 0.2 GB, but at most 0.1 GB are read, half of the free "
        "memory. Write it with Predictions.save, whose files are mapped into memory."
    )
