import json
import os
import sys

import pytest
import torch

from tailshift.data import ImageFolder, ImageParquet

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def encoded(tmp_path, write_image):
    def encoded(i):
        return write_image(tmp_path / "pictures" / f"{i}.png", seed=i).read_bytes()

    return encoded


def _write(path, images, labels, *, names=None, columns=("image", "label")):
    rows = [{"bytes": image, "path": None} for image in images]
    struct = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table([pyarrow.array(rows, struct), labels], names=columns)
    if names:
        features = {columns[1]: {"names": names, "_type": "ClassLabel"}}
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table, path)
    return path


def test_load__hub_layout_with_class_names(tmp_path, encoded):
    names = ["cat", "dog"]
    folder = tmp_path / "data"
    for part in range(2):
        images = [encoded(4 * part + i) for i in range(4)]
        file = folder / f"train-0000{part}-of-00002.parquet"
        _write(file, images, [0, 0, 0, 1], names=names)
    _write(folder / "validation-00000-of-00001.parquet", [encoded(8)], [1], names=names)
    _write(
        folder / "test-00000-of-00001.parquet",
        [encoded(9), encoded(10)],
        [0, 1],
        names=names,
    )
    data = ImageParquet(path=str(folder)).load()
    assert data.class_names == ("cat", "dog")
    assert data.class_counts.tolist() == [6, 2]
    assert (len(data.val), len(data.test)) == (1, 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_load__the_same_images_as_from_files(tmp_path, encoded):
    images = [encoded(i) for i in range(6)]
    file = _write(tmp_path / "all.parquet", images, ["dog", "cat"] * 3)
    data = ImageParquet(path=str(file), image_size=16).load()
    assert data.class_names == ("cat", "dog")
    assert data.class_counts.tolist() == [1, 1]
    (tmp_path / "pictures").rename(tmp_path / "class")
    (tmp_path / "root").mkdir()
    (tmp_path / "class").rename(tmp_path / "root" / "class")
    files = ImageFolder(path=str(tmp_path / "root"), image_size=16).read(
        tmp_path / "root"
    )
    whole = ImageParquet(path=str(file)).read(file).splits["train"]
    for num_workers in (0, 2):
        batches = [
            next(
                split.loader(
                    batch_size=6, training=False, num_workers=num_workers
                ).epoch(0)
            )
            for split in (files.splits["train"], whole)
        ]
        assert torch.equal(batches[0].images, batches[1].images)


def test_load__what_is_held_out_does_not_depend_on_where_the_table_lies(
    tmp_path, encoded
):
    images, labels = [encoded(i) for i in range(20)], ["cat", "dog"] * 10
    data = [
        ImageParquet(path=str(_write(tmp_path / place / "a.parquet", images, labels)))
        for place in ("here", "there")
    ]
    first, second = (dataset.load() for dataset in data)
    assert first.fingerprint == second.fingerprint
    assert first.test.keys() == second.test.keys()


def test_load__other_columns_and_integers(tmp_path, encoded):
    file = _write(
        tmp_path / "a.parquet",
        [encoded(i) for i in range(4)],
        [10, 2, 10, 2],
        columns=("img", "fine_label"),
    )
    settings = {"image_column": "img", "label_column": "fine_label"}
    assert ImageParquet(path=str(file), **settings).load().class_names == ("2", "10")
    with pytest.raises(ValueError, match="columns") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must have the columns image and label, but has img, fine_label. "
        "Name them with data.image_column and data.label_column."
    )


def test_load__faults(tmp_path, encoded):
    images = [encoded(i) for i in range(3)]
    file = _write(tmp_path / "a.parquet", images, [0, 1, -1], names=["cat", "dog"])
    with pytest.raises(ValueError, match="label") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` split train row 2 must have a label in 0..1, but has -1."
    )
    labels = ["cat"] * 3 + ["dog"] * 4
    file = _write(tmp_path / "b.parquet", [*images, *images, None], labels)
    with pytest.raises(FileNotFoundError) as missing:
        ImageParquet(path=str(file), val_fraction=0, test_fraction=0.25).load()
    assert str(missing.value) == (
        f"`{file}, train row 6` is missing, one of 1 missing of the 2 images of test. "
        "Fetch it again, or skip such images with data.skip_broken=true."
    )
    file = _write(tmp_path / "test-0.parquet", images, [0, 1, 1])
    with pytest.raises(ValueError, match="train") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == f"`{file}` must have a train split, but has none."
    with pytest.raises(FileNotFoundError) as missing:
        ImageParquet(path=str(tmp_path / "none")).load()
    assert str(missing.value) == (
        f"there is no Parquet file `{tmp_path / 'none'}`, nor any in it."
    )


def test_load__without_pyarrow(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("pyarrow")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as error:
        ImageParquet(path=str(tmp_path)).load()
    assert str(error.value) == (
        "Parquet tables need the package pyarrow, which is not installed. Install it "
        "with `pip install tailshift[datasets]`."
    )


def test_read__a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="regular") as error:
        ImageParquet(path=str(tmp_path)).read(tmp_path)
    assert str(error.value) == (
        f"`{tmp_path / 'a.parquet'}` must be a regular file, but is not one."
    )


def test_read__more_rows_than_memory_holds(tmp_path, monkeypatch):
    """Rows of one value take no room in a file, but as objects they do."""
    file = _write(tmp_path / "a.parquet", [None] * 100_000, [0] * 100_000)
    assert file.stat().st_size < 10_000
    monkeypatch.setattr("tailshift.data.parquet.free_memory", lambda: 12_000_000)
    with pytest.raises(ValueError, match="unpacks") as error:
        ImageParquet(path=str(file)).read(file)
    assert str(error.value) == (
        f"`{file}` unpacks to 0.0 GB, with the tables before it, but only 0.0 GB of "
        "memory are free. Save the images as files."
    )
    monkeypatch.setattr("tailshift.data.parquet.free_memory", lambda: 20_000_000)
    assert ImageParquet(path=str(file)).read(file).class_names == ("0",)


@pytest.mark.parametrize(
    ("images", "kind"),
    [
        ([3, 4], "int64"),
        (["a.jpg", "b.jpg"], "string"),
        ([{"path": b"x"}] * 2, "struct<path: binary>"),
        ([None, None], "null"),
    ],
)
def test_read__a_column_without_images(tmp_path, images, kind):
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"image": images, "label": [0, 1]}), file)
    with pytest.raises(ValueError, match="encoded images") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must have encoded images in the column image, bytes or structs with "
        f"the field `bytes`, but has {kind}. Name another with data.image_column."
    )


def test_load__nothing_to_hold_out(tmp_path, encoded):
    file = _write(tmp_path / "a.parquet", [encoded(0), encoded(1)], ["dog", "cat"])
    with pytest.raises(ValueError, match="hold one out") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must have two images of some class, to hold one out for the test, "
        "but has one of each. Add images or a test split."
    )


def test_load__no_rows(tmp_path):
    file = _write(tmp_path / "a.parquet", [], pyarrow.array([], pyarrow.int64()))
    with pytest.raises(ValueError, match="two classes") as error:
        ImageParquet(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must have images of two classes at least, but has none."
    )
