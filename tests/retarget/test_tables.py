"""Every format in and out: the untouched keeps its bytes, the scores their values."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tailshift as ts
from tailshift.retarget import open_table

NAMES = ("Cervus elaphus (Red Deer)", "Vulpes vulpes (Red Fox)", "Lynx lynx (Lynx)")
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [1 / 3, 1 / 3, 1 / 3]])


def _wide(path: Path, sep: str = ",", end: str = "\r\n") -> Path:
    rows = [sep.join(['"im,age"', "lat", "note", *NAMES])]
    for i, p in enumerate(P.tolist()):
        note = f'"a ""b"" {i}\n{sep}"' if i == 1 else f" n{i} "
        rows.append(sep.join([f"{i}.jpg", "48.10", note, *map(repr, p)]))
    path.write_bytes(("\ufeff" + end.join(rows) + end).encode() + b"\n")
    return path


def _long(path: Path) -> Path:
    lines = ["score,image,class,by"]
    order = [(0, 0), (1, 1), (0, 1), (2, 0), (2, 2), (1, 0), (0, 2), (2, 1), (1, 2)]
    lines += [f'{P[i, c].item()!r},{i}.jpg,"{NAMES[c]}",me ' for i, c in order]
    path.write_text("\n".join(lines))
    return path


def _camtrap(path: Path) -> Path:
    head = "observationID,mediaID,scientificName,classificationProbability,count"
    rows = ["a,m1,Cervus elaphus,0.70,1", "b,m1,Vulpes vulpes,0.5,2", "c,m2,Homo,,1"]
    path.write_text("\n".join([head, *rows, ""]))
    return path


def _parquet(path: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"image": [f"{i}.jpg" for i in range(3)], "lat": [48.1, 48.2, None]}
    columns |= {f"prob_{name}": P[:, c] for c, name in enumerate(NAMES)}
    pq.write_table(pa.table(columns).replace_schema_metadata({"by": "me"}), path)
    return path


def _npz(path: Path) -> Path:
    with path.open("wb") as file:
        np.savez(file, probs=P, labels=np.arange(3), class_names=np.array(NAMES))
    return path


def _npy(path: Path) -> Path:
    with path.open("wb") as file:
        np.save(file, np.log(P))
    return path


def _safetensors(path: Path) -> Path:
    f = torch.from_numpy(3 * np.log(P) + 2)
    f = f + torch.arange(3)[:, None]
    save_file({"logits": f.contiguous(), "labels": torch.arange(3)}, path)
    return path


LABELS = (
    "1a;mammalia;o;f;cervus;elaphus;red deer",
    "2b;mammalia;o;f;vulpes;vulpes;fox",
)


def _speciesnet(path: Path) -> Path:
    content = {
        "predictions": [
            {
                "filepath": "site1/a.jpg",
                "classifications": {"classes": [*LABELS], "scores": [0.7, 0.2]},
                "prediction": LABELS[0],
                "prediction_score": 0.7,
                "prediction_source": "classifier",
                "model_version": "4.0.1a",
            },
            {"filepath": "site1/é.jpg", "failures": ["CLASSIFIER"]},
        ]
    }
    path.write_text(json.dumps(content, indent=1))
    return path


def _megadetector(path: Path) -> Path:
    detections = [
        {"category": "1", "conf": 0.9, "classifications": [["0", 0.6], ["1", 0.3]]},
        {"category": "2", "conf": 0.812, "bbox": [0.1, 0.2, 0.3, 0.4]},
    ]
    content = {
        "info": {"format_version": "1.4"},
        "classification_categories": {"0": "red deer", "1": "fox"},
        "images": [{"file": "a/b.jpg", "detections": detections}],
    }
    path.write_text(json.dumps(content))
    return path


FORMATS: dict[str, Callable[[Path], Path]] = {
    "wide CSV": _wide,
    "wide TSV": lambda path: _wide(path, "\t", "\n"),
    "long CSV": _long,
    "Camtrap DP observations": _camtrap,
    "Parquet": _parquet,
    ".npz": _npz,
    ".npy": _npy,
    "safetensors": _safetensors,
    "SpeciesNet JSON": _speciesnet,
    "MegaDetector JSON": _megadetector,
}
BYTES = {"SpeciesNet JSON", "MegaDetector JSON", "Camtrap DP observations"}


@pytest.mark.parametrize("name", FORMATS)
def test_retarget__to_the_own_prior_changes_nothing(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path / "no_suffix")  # content tells, not the name
    table = open_table(path)
    assert table.format == name
    found = ts.retarget(path, tmp_path / "out", target="uniform")
    again = open_table(tmp_path / "out")
    assert again.class_names == table.class_names
    for before, after in zip(table.chunks(), again.chunks(), strict=True):
        np.testing.assert_allclose(after.scores, before.scores, atol=1e-9, rtol=0)
        assert {k: list(v) for k, v in before.columns.items()} == {
            k: list(v) for k, v in after.columns.items()
        }
    assert found.num_rows == sum(len(c.scores) for c in table.chunks())
    if name in BYTES:
        rewritten = (tmp_path / "out").read_bytes().replace(b"0.7,1", b"0.70,1")
        assert rewritten == path.read_bytes()


@pytest.mark.parametrize("name", ["wide CSV", "wide TSV"])
def test_retarget__other_cells_keep_their_bytes(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path / "in")
    ts.retarget(path, tmp_path / "out", target="tweak:2:0.8")
    before, after = path.read_bytes(), (tmp_path / "out").read_bytes()
    weighted = P * [0.1, 0.1, 0.8]
    [chunk] = open_table(tmp_path / "out").chunks()
    expected = weighted / weighted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chunk.scores, expected, atol=1e-12)
    for cell in (b'"im,age"', b"48.10", b" n0 ", b'"a ""b"" 1\n', b"\xef\xbb\xbf"):
        assert cell in before
        assert cell in after
    assert after.count(b"\r") == before.count(b"\r")


def test_retarget__other_parquet_columns_and_metadata_stay(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = _parquet(tmp_path / "in")
    ts.retarget(path, tmp_path / "out", target="tweak:1:0.8")
    before, after = pq.read_table(path), pq.read_table(tmp_path / "out")
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.select(["image", "lat"]).equals(before.select(["image", "lat"]))
    assert not after.equals(before)


def test_retarget__other_arrays_stay(tmp_path: Path) -> None:
    path = _safetensors(tmp_path / "in")
    ts.retarget(path, tmp_path / "out", target="tweak:1:0.8")
    before, after = load_file(path), load_file(tmp_path / "out")
    assert torch.equal(before["labels"], after["labels"])
    ratio = torch.tensor([0.3, 2.4, 0.3]).double().log()
    torch.testing.assert_close(after["logits"], before["logits"] + ratio)


def test_speciesnet__rest_is_spread_and_prediction_follows(tmp_path: Path) -> None:
    path = _speciesnet(tmp_path / "in")
    found = ts.retarget(path, tmp_path / "out", target="tweak:fox:0.9")
    entry = json.loads((tmp_path / "out").read_text())["predictions"][0]
    assert entry["prediction"] == LABELS[1] == entry["classifications"]["classes"][0]
    weights = np.array([0.7 * 0.1, 0.2 * 0.9])
    expected = 0.9 * weights / weights.sum()  # the total of the row stays
    np.testing.assert_allclose(entry["classifications"]["scores"], expected[::-1])
    assert entry["prediction_score"] == entry["classifications"]["scores"][0]
    assert "SpeciesNet" in found.notes[0]


def test_speciesnet__mass_of_unnamed_classes_goes_to_the_others(tmp_path: Path) -> None:
    path = _speciesnet(tmp_path / "in")
    content = json.loads(path.read_text())
    other = {"classes": ["a;b;c;d;e;f;owl", LABELS[1]], "scores": [0.6, 0.3]}
    content["predictions"][1] = {"filepath": "x/b.jpg", "classifications": other}
    path.write_text(json.dumps(content))
    found = ts.retarget(path, tmp_path / "out", classes=["fox", "owl"])
    first = json.loads((tmp_path / "out").read_text())["predictions"][0]
    scores = dict(zip(*first["classifications"].values(), strict=True))
    # 0.1 is left for owl, the third class of the file.
    assert scores[LABELS[1]] == pytest.approx(0.2 / 0.3)
    assert scores[LABELS[0]] == 0
    assert any("largest scores only" in note for note in found.notes)


def test_speciesnet__target_logits_are_used_where_present(tmp_path: Path) -> None:
    path = _speciesnet(tmp_path / "in")
    content = json.loads(path.read_text())
    logits = {"target_classes": [*LABELS], "target_logits": [2.5, -1.0]}
    content["predictions"][0]["classifications"] |= logits
    path.write_text(json.dumps(content))
    ts.retarget(path, tmp_path / "out", target="tweak:1:0.8")
    after = json.loads((tmp_path / "out").read_text())["predictions"][0]
    expected = np.array([2.5, -1.0]) + np.log([0.4, 1.6])
    np.testing.assert_allclose(after["classifications"]["target_logits"], expected)
    assert after["classifications"]["scores"] == [0.7, 0.2]


def test_wide__class_columns_are_found_among_other_numbers(tmp_path: Path) -> None:
    lines = ["id,lat,speed,a,b,c,weight"]
    lines += [f"{i},{10 * i},{2.5 * i},0.2,0.3,0.5,7.1" for i in range(20)]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    table = open_table(tmp_path / "in.csv")
    # The run of numbers is searched for a part whose rows sum to 1.
    assert table.class_names[-1] in ("c", "weight")
    found = ts.retarget(
        tmp_path / "in.csv", tmp_path / "out.csv", target="uniform", class_columns="a:c"
    )
    assert found.class_names == ("a", "b", "c")
