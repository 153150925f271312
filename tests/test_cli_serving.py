"""`tailshift estimate`, `predict` and `export`: what they print, write and refuse."""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import tailshift as ts
from tailshift import Predictions, Run, load_recipe, train
from tailshift.data import DATASETS
from tailshift.serving import image_logits, image_paths
from tailshift.storage import read_json, write_json

Command = Callable[..., Any]

SENTENCE = "the estimated prior is used. Indicative only: only 55 held-out labels"
COLUMNS = ("path", "predicted", "probability", "class_2", "probability_2")
pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of softmax that has learnt something, in twenty epochs."""
    config = load_recipe("digits_lt", ["method.name=softmax", "train.epochs=20"])
    return train(config, output=tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.directory, tmp_path / "run"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write test digits as images, few zeros and many nines, named by their label."""
    data = DATASETS.get("digits_lt")().load(root=None, seed=0)
    for c in range(10):
        for i in range(5 * c + 5 if c < 9 else 45):
            image = data.test.images[50 * c + i, 0].numpy()
            path = tmp_path / "photos" / f"{c}-{i}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(image).save(path)
    return Path("photos")


def _rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _accuracy(path: str) -> float:
    rows = _rows(path)
    assert tuple(rows[0])[:5] == COLUMNS
    return np.mean([Path(r["path"]).name[0] == r["predicted"] for r in rows]).item()


def test_predict__adapts_to_a_folder(
    tailshift: Command, run: Path, photos: Path
) -> None:
    plain = tailshift("predict", run, photos, "-o", "plain.csv")
    assert plain == (0, "plain.csv\n", "")
    adapted = tailshift("predict", run, photos, "--adapt", "-o", "adapted.csv")
    assert (adapted.code, adapted.out) == (0, "adapted.csv\n")
    assert SENTENCE in adapted.err.splitlines()[-1]
    assert _accuracy("adapted.csv") > _accuracy("plain.csv") + 0.05


def test_predict__answers_for_a_target(
    tailshift: Command, run: Path, photos: Path
) -> None:
    """A mix of one class has one answer; the source mix is the default."""
    Path("mix.txt").write_text("0\n" * 9 + "1\n")
    assert tailshift("predict", run, photos, "--target", "mix.txt").out.count(",9,") > 0
    printed = tailshift("predict", run, photos / "0-0.png", "--target", "mix.txt").out
    assert printed.splitlines()[1].startswith("photos/0-0.png,9,1.000000,")
    default = tailshift("predict", run, photos).out
    assert tailshift("predict", run, photos, "--target", "source").out == default
    assert tailshift("predict", run, photos, "--target", "uniform").out != default


@pytest.mark.parametrize(
    ("key", "value"),
    [("mean", math.nan), ("mean", math.inf), ("std", 0.0), ("std", math.nan)],
)
def test_predict__run_that_would_answer_nan(
    tailshift: Command, run: Path, photos: Path, key: str, value: float
) -> None:
    """A stranger can seal what he likes: values are checked too."""
    write_json(run / "run.json", read_json(run / "run.json") | {key: [value]})
    result = tailshift("predict", "run", "photos/0-0.png")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: run/run.json is damaged: `{key}.0` must be ")


def test_predict__no_formula_reaches_a_spreadsheet(
    tailshift: Command, run: Path, photos: Path
) -> None:
    facts = read_json(run / "run.json")
    facts["class_names"] = [f"={name}+1" for name in facts["class_names"]]
    write_json(run / "run.json", facts)
    (photos / "0-0.png").rename("=x.png")
    printed = tailshift("predict", "run", "=x.png").out
    path, predicted = printed.splitlines()[1].split(",")[:2]
    assert (path, predicted[:2], predicted[-2:]) == ("'=x.png", "'=", "+1")
    tailshift("predict", "run", "=x.png", "-o", "answers.csv")
    assert Path("answers.csv").read_text() == printed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("predict", "run", "photos"), ("--version",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output__on_a_full_disk(
    run: Path, photos: Path, tmp_path: Path, words: tuple[str, ...], unbuffered: str
) -> None:
    """A fault comes up where it is printed, or when all is written at the end."""
    with Path("/dev/full").open("w") as full:
        done = _printing_to(full.fileno(), tmp_path, *words, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (
        2,
        "error: standard output cannot be written (No space left on device).\n",
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output__whose_reader_is_gone(tmp_path: Path, unbuffered: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = _printing_to(theirs, tmp_path, "list", "recipes", unbuffered=unbuffered)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


def _printing_to(
    output: int, folder: Path, *words: str, unbuffered: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tailshift", *words],
        cwd=folder,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_predict__names_broken_images(
    tailshift: Command, run: Path, photos: Path
) -> None:
    (photos / "a.png").write_text("no image")
    (photos / "b.png").touch()
    result = tailshift("predict", run, photos, "-o", "out.parquet")
    assert result == (
        0,
        "out.parquet\n",
        "warning: `photos/a.png` is not an image of a known format and is skipped.\n"
        "warning: `photos/b.png` is not an image of a known format and is skipped.\n",
    )
    table = pytest.importorskip("pyarrow.parquet").read_table("out.parquet")
    assert (table.num_rows, table.column_names[:5]) == (270, list(COLUMNS))


@pytest.mark.filterwarnings("always")
def test_predict__names_and_counts_what_is_not_read(
    tailshift: Command, run: Path, photos: Path
) -> None:
    for name in ("1.HEIC", "2.heic", "notes.txt"):
        (photos / name).touch()
    result = tailshift("predict", run, photos, "-o", "answers.csv")
    assert result == (
        0,
        "answers.csv\n",
        "warning: `photos` holds files that are not read: 2 .heic, 1 .txt. Save images "
        "among them in another format (.jpg, .jpeg, .png …).\n",
    )
    assert len(_rows("answers.csv")) == 270


def test_predict__keeps_the_source_prior_without_validation_logits(
    tailshift: Command, run: Path, photos: Path
) -> None:
    (run / "predictions" / "val.safetensors").rename("val.safetensors")
    result = tailshift("predict", run, photos, "--adapt", "-o", "adapted.csv")
    assert result == (
        0,
        "adapted.csv\n",
        f"note: {run} has no validation logits to calibrate on, so predictions stay "
        "as trained. Give labelled logits (`held_out`, --held-out).\n",
    )
    tailshift("predict", run, photos, "-o", "plain.csv")
    assert Path("adapted.csv").read_text() == Path("plain.csv").read_text()
    options = ("--adapt", "--held-out", "val.safetensors", "-o", "held.csv")
    assert SENTENCE in tailshift("predict", run, photos, *options).err


def test_predict__from_python_as_from_the_command_line(
    tailshift: Command, run: Path, photos: Path
) -> None:
    (photos / "a.png").write_text("no image")
    for options, settings in (
        ((), {}),
        (("--target", "backward:10"), {"target": "backward:10"}),
        (("--adapt",), {"adapt": True}),
    ):
        printed = tailshift("predict", run, photos, *options)
        answers = ts.predict(ts.load_run(run), photos, **settings)
        answers.save("answers.csv")
        assert Path("answers.csv").read_text() == printed.out
        assert list(answers.broken) == [str(photos / "a.png")]
        if "adapt" in settings:
            assert SENTENCE in answers.reason
            continue  # predictions use the calibrator too
        assert answers.reason == ""
        again = ts.predict(run, [photos], target=answers.target_prior)
        assert again.rows == answers.rows


@pytest.fixture
def book(run: Path, tmp_path: Path) -> ts.SitePriors:
    """Write a book of two sites: many zeros in the east, many nines in the west."""
    book = ts.SitePriors(ts.load_run(run).class_names, ts.load_run(run).source_prior)
    book.add("east", counts=[9000, *[10] * 9])
    book.add("west", counts=[*[10] * 9, 9000])
    book.save(tmp_path / "book.json")
    return book


def test_predict__answers_for_a_site(
    tailshift: Command, run: Path, photos: Path, book: ts.SitePriors
) -> None:
    words = ("predict", run, photos, "--book", "book.json")
    printed = tailshift(*words, "--site", "west")
    answers = ts.predict(run, photos, site="west", book=book)
    assert torch.equal(answers.target_prior, book.prior("west"))
    answers.save("west.csv")
    assert Path("west.csv").read_text() == printed.out
    assert printed.out != tailshift(*words, "--site", "east").out
    assert tailshift(*words, "--site", "wets").err == (
        "error: unknown site 'wets'; did you mean 'west'? Known: east, west\n"
    )


def test_predict__each_image_for_its_own_site(
    tailshift: Command, run: Path, photos: Path, book: ts.SitePriors
) -> None:
    names = sorted(path.name for path in photos.iterdir())
    where = {
        f"{photos}/{name}": ("east", "west")[i % 2] for i, name in enumerate(names)
    }
    lines = [f"{path},{site},x" for path, site in where.items()]
    Path("sites.csv").write_text("\n".join(["path,site,camera", *lines]))
    Path("lists").mkdir()
    aside = "\n".join(["path,site", *(f"../{line}" for line in lines)])
    Path("lists/sites.csv").write_text(aside)
    words = ("predict", run, photos, "--book", "book.json", "--sites")
    printed = tailshift(*words, "sites.csv", "-o", "both.csv")
    assert printed == (0, "both.csv\n", "")
    tailshift(*words, "lists/sites.csv", "-o", "aside.csv")
    assert Path("aside.csv").read_text() == Path("both.csv").read_text()
    answers = ts.predict(run, photos, sites=where, book="book.json")
    alone = {
        site: {row["path"]: row for row in ts.predict(run, photos, target=q).rows}
        for site, q in answers.site_priors.items()
    }
    assert set(alone) == {"east", "west"}
    assert [row["path"] for row in _rows("both.csv")] == list(where)
    for row in answers.rows:
        site = where[row["path"]]
        assert row == alone[site][row["path"]] | {"site": site}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,place\n", "sites.csv must have the columns path and site, but has path, "
         "place."),
        ("path,site\nphotos/0-0.png\n", "sites.csv must name an image and its site in "
         "each row, but row 2 does not."),
        ("path,site\nphotos/0-0.png,east\nphotos/0-0.png,west\n", "sites.csv must name "
         "one site for an image, but names two for `photos/0-0.png`."),
        ("path,site\nphotos/0-1.png,east\n", "`sites` must name the site of every "
         "image, but sites.csv does not name that of `photos/0-0.png`."),
        ("path,site\nphotos/0-0.png,north\n", "unknown site 'north'; Known: east, "
         "west"),
        ("", "sites.csv must be a CSV file, but is none."),
    ],
)  # fmt: skip
def test_predict__sites_that_cannot_be(
    text: str,
    reason: str,
    tailshift: Command,
    run: Path,
    photos: Path,
    book: ts.SitePriors,
) -> None:
    Path("sites.csv").write_text(text)
    words = ("predict", run, photos / "0-0.png", "--book", "book.json")
    result = tailshift(*words, "--sites", "sites.csv")
    assert (result.code, result.err) == (2, f"error: {reason}\n")


def test_predict__one_class_mix_at_a_time(
    tailshift: Command, run: Path, photos: Path, book: ts.SitePriors
) -> None:
    def told(*options: str) -> str:
        result: str = tailshift("predict", run, photos, *options).err
        return result

    assert told("--site", "east", "--adapt", "--book", "book.json") == (
        "error: `adapt` and `site` each choose a target prior: give one of them.\n"
    )
    assert told("--site", "east") == (
        "error: `site` needs a book of priors (`book`), but there is none.\n"
    )
    assert told("--book", "book.json") == (
        "error: `book` needs a site (`site`) or the site of each image (`sites`), but "
        "there is none.\n"
    )
    other = ts.SitePriors(["kea", "kiwi"], [0.5, 0.5])
    other.add("east")
    with pytest.raises(ValueError, match="`book` must") as error:
        ts.predict(run, photos, site="east", book=other)
    assert str(error.value) == (
        "`book` must have the classes of the run in their order, but has 2 ('kea', "
        f"'kiwi'), and {run} 10 ('0', '1', '2', …)."
    )


def test_predict__sets_hold_the_label_as_often_as_asked(
    tailshift: Command, run: Path, photos: Path
) -> None:
    test = run / "predictions" / "test.safetensors"
    options = ("--target", "uniform", "--held-out", test, "--sets", "0.95")
    assert tailshift("predict", run, photos, *options, "-o", "sets.csv").code == 0
    rows = _rows("sets.csv")
    assert tuple(rows[0])[-2:] == ("set", "set_size")
    sets = [row["set"].split("; ") for row in rows]
    assert [str(len(names)) for names in sets] == [row["set_size"] for row in rows]
    assert all(s[0] == row["predicted"] for s, row in zip(sets, rows, strict=True))
    hits = [Path(r["path"]).name[0] in s for r, s in zip(rows, sets, strict=True)]
    assert np.mean(hits) > 0.85  # nines are 45 of 270, and not a tenth
    answers = ts.predict(run, photos, target="uniform", held_out=test, sets=0.95)
    assert [row["set"] for row in answers.rows] == [row["set"] for row in rows]
    assert tailshift("predict", run, photos, "--sets", "95").err == (
        "error: `coverage` must be greater than 0 and less than 1, but is 95.0. "
        "Write 90 % as 0.9.\n"
    )


def test_predict__sets_need_held_out_logits(
    tailshift: Command, run: Path, photos: Path
) -> None:
    (run / "predictions" / "val.safetensors").unlink()
    result = tailshift("predict", run, photos, "--sets", "0.9")
    assert result == (
        2,
        "",
        f"error: {run} has no validation logits to calibrate on. Give labelled logits "
        "(`held_out`, --held-out).\n",
    )


def test_estimate__from_python_as_from_the_command_line(
    tailshift: Command, run: Path, photos: Path
) -> None:
    printed = tailshift("estimate", run, "--unlabelled", photos, "-o", "mix.csv")
    report = ts.estimate(run, photos)
    assert report.adaptation.reason in printed.out
    report.save_prior("python.csv")
    assert Path("python.csv").read_text() == Path("mix.csv").read_text()
    logits = image_logits(ts.load_run(run), image_paths(photos)).logits
    by_logits = ts.estimate(ts.load_run(run).predictions("val"), logits)
    assert torch.equal(
        by_logits.adaptation.target_prior, report.adaptation.target_prior
    )


def test_estimate__of_images_and_back_as_a_target(
    tailshift: Command, run: Path, photos: Path
) -> None:
    result = tailshift("estimate", run, "--unlabelled", photos, "-o", "mix.json")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "55 labelled samples held out, 270 unlabelled, 10 classes"
    assert SENTENCE in lines[1]
    assert lines[2].startswith("power-law exponent -")
    assert "true" not in result.out
    assert list(json.loads(Path("mix.json").read_text())) == list("0123456789")
    tailshift("predict", run, photos, "--target", "mix.json", "-o", "a.csv")
    tailshift("predict", run, photos, "--adapt", "-o", "b.csv")
    same = [
        (a["path"], a["predicted"]) == (b["path"], b["predicted"])
        for a, b in zip(_rows("a.csv"), _rows("b.csv"), strict=True)
    ]
    assert sum(same) > 0.9 * len(same)  # --adapt also calibrates


def test_estimate__shows_the_true_prior_where_labels_are(
    tailshift: Command, run: Path
) -> None:
    test = run / "predictions" / "test.safetensors"
    result = tailshift("estimate", run, "--unlabelled", test)
    assert result.code == 0
    body = [line.split() for line in result.out.splitlines()[3:] if line.split()]
    heading, _, *rows = body
    assert heading[-5:] == ["estimated", "95", "%", "interval", "true"]
    accuracy = rows[-1]
    assert accuracy[0] == "accuracy"
    none, estimated, oracle = map(float, accuracy[1:])
    assert estimated > none
    assert abs(oracle - estimated) < 5
    assert [row[-1] for row in rows if row[0].isdigit()] == ["10.0"] * 10


def _held_out_and_new() -> NDArray[np.int64]:
    """Write logits: a thousand held out, whose labels it returns, and as many new."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, size=2000, p=[0.6, 0.3, 0.1])
    logits = 1.5 * (rng.normal(size=(2000, 3)) + 1.5 * np.eye(3)[y])
    logits += np.log([0.6, 0.3, 0.1])
    np.savez("held.npz", logits=logits[:1000], labels=y[:1000])
    np.save("new.npy", logits[1000:])
    return y[:1000]


def _read_terminal(side: int) -> str:
    """Return all that is shown until the other side is closed."""
    shown = b""
    with suppress(OSError):  # how Linux says that it is closed
        while part := os.read(side, 2**16):
            shown += part
    os.close(side)
    return shown.decode()


def test_estimate__shows_its_phases_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _held_out_and_new()
    ours, theirs = os.openpty()
    words = ("estimate", "held.npz", "--unlabelled", "new.npy")
    command = [sys.executable, "-m", "tailshift", *words]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = _read_terminal(ours)
        printed = process.communicate(timeout=100)[0].decode()
    assert process.returncode == 0
    # A phase that is over between two frames of the display is not shown.
    for phase in (
        "calibrating on 1,000 held-out samples",
        "computing 100 replicates",
    ):
        assert phase in shown
        assert phase not in printed


def test_estimate__of_logits_made_elsewhere(tailshift: Command) -> None:
    """Held-out and unlabelled logits from files; a thousand samples, no shift."""
    y = _held_out_and_new()
    result = tailshift("estimate", "held.npz", "--unlabelled", "new.npy", "-o", "p.csv")
    assert result.err == ""
    sentence = result.out.splitlines()[1]
    assert sentence.startswith("the estimated prior is expected to change accuracy by")
    assert sentence.endswith("predictions stay as trained.")
    with Path("p.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["class", "share"]
    names, shares = zip(*rows, strict=True)
    assert names == ("class 0", "class 1", "class 2")
    expected = (np.bincount(y) + 0.5) / 1001.5
    np.testing.assert_allclose(np.array(shares, float), expected, atol=1e-8)


AS_PROBABILITIES = (
    "`logits` must be logits, but every row lies in [0, 1] and sums to 1, as "
    "probabilities do. Take their logarithm, or give them as `probs` "
    "(Predictions.from_probs)."
)


def test_files__probabilities_as_logits_are_refused(tailshift: Command) -> None:
    labels = _held_out_and_new()
    probs = torch.from_numpy(np.load("new.npy")).softmax(dim=1).numpy()
    np.save("p.npy", probs)
    np.savez("p.npz", logits=probs, labels=labels)
    in_array = f"error: {AS_PROBABILITIES}\n"
    unusable = f"error: p.npz cannot be used: {AS_PROBABILITIES}\n"
    for command, error in (
        (("estimate", "held.npz", "--unlabelled", "p.npy"), in_array),
        (("estimate", "held.npz", "--unlabelled", "p.npz"), unusable),
        (("estimate", "p.npz", "--unlabelled", "new.npy"), unusable),
        (("evaluate", "p.npz"), unusable),
    ):
        assert tailshift(*command) == (2, "", error)


def test_estimate__many_classes_show_those_that_moved(tailshift: Command) -> None:
    torch.manual_seed(0)
    labels = torch.arange(30).repeat(20)
    logits = torch.randn(600, 30) + 5 * torch.eye(30)[labels]
    Predictions(logits, labels).save("held.safetensors")
    Predictions(logits[labels < 3], labels[labels < 3]).save("new.safetensors")
    result = tailshift(
        "estimate", "held.safetensors", "--unlabelled", "new.safetensors"
    )
    assert "the 20 of 30 classes that moved most" in result.out
    rows = [line.split() for line in result.out.splitlines() if "class " in line]
    for c in (0, 1, 2):
        [row] = [row for row in rows if row[:2] == ["class", str(c)]]
        assert float(row[3]) > 25


def test_export__writes_both_forms(tailshift: Command, run: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = tailshift("export", run, "-o", "m.onnx", "--target-input", "--program")
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("m.onnx (probabilities within ")
    assert second.startswith("m.pt2 (probabilities within ")
    names = [given.name for given in runtime.InferenceSession("m.onnx").get_inputs()]
    assert names == ["images", "target_prior"]
    assert tailshift("export", run, "-o", "m.onnx", "--target", "uniform") == (
        2,
        "",
        "error: m.onnx exists. Replace it (--force) or name another.\n",
    )


def test_export__from_python(run: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    written = ts.export(run, tmp_path / "m.onnx", target="backward:10")
    assert list(written) == [tmp_path / "m.onnx"]
    assert written[tmp_path / "m.onnx"] < 1e-4
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    kept = session.get_modelmeta().custom_metadata_map["target_prior"]
    expected = ts.load_run(run).target_prior("backward:10")
    np.testing.assert_allclose(json.loads(kept), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("predict", "run", "photos", "--target", "uniform", "--adapt"),
            "`target` names a target prior and `adapt` estimates one: give one of "
            "them.",
        ),
        (
            ("predict", "run", "photos", "-o", "a.xlsx"),
            "`output` must end in .csv or .parquet, but is a.xlsx.",
        ),
        (("predict", "run", "none"), "there is no file or folder `none`."),
        (("predict", "none", "photos"), "there is no run directory none."),
        (
            ("predict", "run", "photos", "--target", "forward"),
            "`target` must be like forward:RATIO, with a ratio >= 1, but is 'forward'.",
        ),
        (
            ("export", "run", "-o", "m.pb"),
            "`output` must end in .onnx, but is m.pb.",
        ),
        (
            ("export", "run", "-o", "m.onnx", "--target", "uniform", "--target-input"),
            "`target` fixes a target prior and `target_input` leaves it open: give "
            "one of them.",
        ),
        (
            ("estimate", "run/predictions/val.safetensors", "--unlabelled", "photos"),
            "`unlabelled` photos are images, which only the model of a run can "
            "judge. Name a run directory, or give a file of logits.",
        ),
        (
            ("estimate", "run", "--unlabelled", "none.npz"),
            "There is no file none.npz of unlabelled logits.",
        ),
    ],
)
def test_serving__refuses_with_a_sentence(
    tailshift: Command, run: Path, photos: Path, arguments: list[str], message: str
) -> None:
    assert tailshift(*arguments) == (2, "", f"error: {message}\n")


def test_estimate__does_not_fall_back_to_test_logits(
    tailshift: Command, run: Path
) -> None:
    (run / "predictions" / "val.safetensors").unlink()
    test = run / "predictions" / "test.safetensors"
    assert tailshift("estimate", "run", "--unlabelled", test) == (
        2,
        "",
        "error: run has no validation logits to calibrate on. Give labelled logits "
        "(`held_out`, --held-out).\n",
    )
    asked = tailshift("estimate", "run", "--unlabelled", test, "--held-out", test)
    assert asked.code == 0


@pytest.mark.parametrize("command", ["estimate", "predict", "export"])
def test_help__ends_with_an_example(tailshift: Command, command: str) -> None:
    result = tailshift(command, "--help")
    assert result.code == 0
    assert f"Example: tailshift {command}" in " ".join(result.out.split())
