import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tailshift.predictions import (
    Predictions,
    as_tensor,
    check_counts,
    check_logits,
    check_probs,
)

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
        "trained_prior": PRIOR,
        "class_names": NAMES,
    }
    return Predictions(**(fields | changes))


def _assert_same(left: Predictions, right: Predictions):
    for key in ("logits", "labels", "source_counts", "trained_prior"):
        a, b = getattr(left, key), getattr(right, key)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert left.class_names == right.class_names


# Construction


def test_predictions__keeps_what_it_is_given():
    predictions = _predictions()
    assert torch.equal(predictions.logits, LOGITS)
    assert predictions.logits.data_ptr() == LOGITS.data_ptr()
    assert predictions.num_classes == 3
    assert predictions.class_names == NAMES
    assert predictions.trained_prior.dtype == torch.float64
    assert repr(predictions) == "Predictions(2 samples, 3 classes, torch.float32)"


def test_predictions__only_logits_and_labels():
    predictions = Predictions(LOGITS, LABELS)
    assert predictions.source_counts is None
    assert predictions.trained_prior is None
    assert predictions.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
    ],
)
def test_predictions__logits_dtypes(given, kept):
    assert _predictions(logits=LOGITS.to(given)).logits.dtype == kept


def test_predictions__drops_the_gradient():
    logits = LOGITS.clone().requires_grad_()
    assert not _predictions(logits=logits).logits.requires_grad


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_predictions__arrays_that_torch_cannot_share(dtype):
    logits = LOGITS.numpy().astype(">f4")[:, ::-1]
    logits.flags.writeable = False
    labels = LABELS.numpy().astype(dtype)
    labels.flags.writeable = False
    prior = PRIOR.numpy().copy()
    prior.flags.writeable = False
    predictions = Predictions(logits, labels, [6, 3, 1], prior, list(NAMES))
    assert torch.equal(predictions.logits, LOGITS.flip(1))
    assert torch.equal(predictions.labels, LABELS)
    assert torch.equal(predictions.source_counts, COUNTS)
    assert torch.equal(predictions.trained_prior, PRIOR)


def test_from_probs__takes_logs_and_zero_becomes_minus_infinity():
    probs = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    predictions = Predictions.from_probs(probs, LABELS.numpy(), class_names=NAMES)
    expected = [[np.log(0.5), np.log(0.5), -np.inf], [-np.inf, -np.inf, 0.0]]
    np.testing.assert_allclose(predictions.logits.numpy(), expected, rtol=1e-6)
    assert predictions.logits.dtype == torch.float32


def test_half__copies_in_half_precision():
    predictions = _predictions()
    half = predictions.half()
    assert half.logits.dtype == torch.float16
    assert predictions.logits.dtype == torch.float32
    assert torch.equal(half.logits.float(), LOGITS)
    again = half.half()
    assert again.logits.data_ptr() != half.logits.data_ptr()
    _assert_same(again, half)


def test_half__refuses_what_would_overflow():
    logits = torch.tensor([[1.0, -70000.0, -torch.inf]])
    predictions = Predictions(logits, torch.tensor([0]))
    with pytest.raises(ValueError, match="half precision") as error:
        predictions.half()
    assert str(error.value) == (
        "`logits` must lie within ±65504 to be kept in half precision, "
        "but -70000 is among them."
    )


@pytest.mark.parametrize(
    ("changes", "exception", "message"),
    [
        (
            {"logits": LOGITS[0]},
            ValueError,
            "`logits` must have shape (N, C) with at least one row and one class, "
            "but has shape (3,).",
        ),
        (
            {"logits": LOGITS[:0]},
            ValueError,
            "`logits` must have shape (N, C) with at least one row and one class, "
            "but has shape (0, 3).",
        ),
        (
            {"logits": LABELS[:, None]},
            TypeError,
            "`logits` must be floating point, but is torch.int64.",
        ),
        (
            {"logits": torch.tensor([[0.0, 1.0, 2.0], [0.0, torch.nan, 9.0]])},
            ValueError,
            "`logits` must be finite or −inf, but row 1 (from 0) holds nan.",
        ),
        (
            {"logits": torch.tensor([[0.0, 1.0, torch.inf], [0.0, 1.0, 2.0]])},
            ValueError,
            "`logits` must be finite or −inf, but row 0 (from 0) holds inf.",
        ),
        (
            {"logits": torch.full((2, 3), 1e300, dtype=torch.float64)},
            ValueError,
            "`logits` must be finite or −inf, but row 0 (from 0) holds inf.",
        ),
        (
            {"logits": torch.full((2, 3), -torch.inf)},
            ValueError,
            "`logits` must not be −inf for every class, but row 0 (from 0) is.",
        ),
        (
            {"logits": np.array([["a", "b", "c"]])},
            TypeError,
            "`logits` must be a tensor, an array or a list of numbers, "
            "but is an array of <U1.",
        ),
        (
            {"logits": "logits.npy"},
            TypeError,
            "`logits` must be a tensor, an array or a list of numbers, but is str.",
        ),
        (
            {"labels": torch.tensor([0, 3])},
            ValueError,
            "`labels` must lie in 0..2, but label 1 (counted from 0) is 3.",
        ),
        (
            {"labels": torch.tensor([0.0, 1.0])},
            TypeError,
            "`labels` must be integers, but are torch.float32.",
        ),
        (
            {"labels": torch.tensor([0, 1, 2])},
            ValueError,
            "`labels` has 3 entries but `logits` has 2 rows.",
        ),
        (
            {"source_counts": COUNTS[:2]},
            ValueError,
            "`source_counts` has 2 entries but there are 3 classes.",
        ),
        (
            {"source_counts": PRIOR},
            TypeError,
            "`source_counts` must be integers, but are torch.float64.",
        ),
        (
            {"source_counts": torch.tensor([5, -1, 0])},
            ValueError,
            "`source_counts` must not be negative, but is -1 for class 1.",
        ),
        (
            {"source_counts": torch.tensor([0, 0, 0])},
            ValueError,
            "`source_counts` must not be 0 for every class.",
        ),
        (
            {"trained_prior": PRIOR[:2]},
            ValueError,
            "`trained_prior` has 2 entries but `logits` has 3 classes.",
        ),
        (
            {"trained_prior": PRIOR / 2},
            ValueError,
            "`trained_prior` must sum to 1, but sums to 0.5000 (3 classes). "
            "Build it with priors.from_counts(counts).",
        ),
        (
            {"class_names": ("kea", "tui")},
            ValueError,
            "`class_names` has 2 names but `logits` has 3 classes.",
        ),
        (
            {"class_names": (0, 1, 2)},
            TypeError,
            "`class_names` must be strings, one a class.",
        ),
    ],
)
def test_predictions__refuses_with_a_sentence(changes, exception, message):
    with pytest.raises(exception) as error:
        _predictions(**changes)
    assert str(error.value) == message


def test_check_counts__refuses_a_matrix():
    with pytest.raises(ValueError, match="vector") as error:
        check_counts(torch.ones(2, 2, dtype=torch.int64))
    assert str(error.value) == (
        "`class_counts` must be a vector with one entry a class, but has shape (2, 2)."
    )


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (
            [[0.5, 0.6]],
            "Rows of `probs` must sum to 1, but row 0 (from 0) sums to 1.1000.",
        ),
        ([[1.5, 0.5]], "`probs` must lie in [0, 1], but holds 1.5. Are these logits?"),
        (
            [[0.5, -0.5]],
            "`probs` must lie in [0, 1], but holds -0.5. Are these logits?",
        ),
        (
            [[0.5, torch.nan]],
            "`probs` must be finite or −inf, but row 0 (from 0) holds nan.",
        ),
    ],
)
def test_check_probs__refuses_with_a_sentence(probs, message):
    with pytest.raises(ValueError, match="probs") as error:
        check_probs(torch.tensor(probs))
    assert str(error.value) == message


def test_check_probs__takes_many_half_precision_classes():
    probs = torch.randn(20, 8142).softmax(dim=1).half()
    assert check_probs(probs) is not None


def test_as_tensor__shares_memory_where_it_can():
    array = np.zeros((2, 3), dtype=np.float32)
    assert as_tensor(array, "logits").data_ptr() == array.ctypes.data


def test_check_logits__makes_no_copy():
    assert check_logits(LOGITS).data_ptr() == LOGITS.data_ptr()


# Files


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
    assert keys == {"logits", "labels", "source_counts", "trained_prior"}
    assert metadata["tailshift_predictions"] == "1"
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

    monkeypatch.setattr("tailshift.predictions.save_file", full_disk)
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
            "Known: logits, labels, source_counts, trained_prior, class_names.",
        ),
        (
            {"probs": LOGITS.softmax(1), "labels": LABELS},
            {},
            "PATH cannot be used: unknown entry 'probs'; "
            "Known: logits, labels, source_counts, trained_prior, class_names.",
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
            {"tailshift_predictions": "2"},
            "PATH is of format version 2, but this tailshift reads version 1.",
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
        trained_prior=PRIOR.numpy(),
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
            "trained_prior, class_names, probs.",
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
