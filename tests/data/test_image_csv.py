import pytest

from tailshift.data import ImageCSV


@pytest.fixture
def write(tmp_path):
    def write(text, encoding="utf-8"):
        file = tmp_path / "images.csv"
        file.write_bytes(text.encode(encoding))
        return file

    return write


def _read(file, **settings):
    return ImageCSV(path=str(file), **settings).read(file)


def test_read__quirks(write):
    """Byte order mark, quoted commas, spaces, other columns and their order, CRLF."""
    file = write(
        '\ufefflabel, path,comment\r\ndog,"a, b.jpg","one, two"\r\n cat ,c.jpg,\r\n'
    )
    found = _read(file)
    assert found.class_names == ("cat", "dog")
    assert found.splits["train"].images.paths == ("a, b.jpg", "c.jpg")
    assert found.splits["train"].labels.tolist() == [1, 0]
    assert found.splits["train"].images.root == file.parent


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_read__as_spreadsheets_and_windows_write_it(write, delimiter):
    rows = [["label", "path", "price"], ["a, b", r"birds\kea.jpg", "1,5"]]
    file = write("".join(delimiter.join(row) + "\r\n" for row in rows))
    found = _read(file)
    assert found.class_names == ("a, b",)
    assert found.splits["train"].images.paths == ("birds/kea.jpg",)


def test_read__splits(write, tmp_path):
    file = write(
        "path,label,split\na.jpg,7,train\nb.jpg,10,Train\nc.jpg,7,test\n"
        "d.jpg,7,validation\n"
    )
    found = _read(file, image_root=str(tmp_path / "pictures"))
    assert found.class_names == ("7", "10")
    paths = {name: split.images.paths for name, split in found.splits.items()}
    assert paths == {
        "train": ("a.jpg", "b.jpg"),
        "val": ("d.jpg",),
        "test": ("c.jpg",),
    }
    assert found.splits["train"].images.root == tmp_path / "pictures"


def test_load__trains_on_what_it_lists(write, tmp_path, write_image):
    rows = [(f"{i}.png", "cat" if i < 7 else "dog") for i in range(10)]
    for path, _ in rows:
        write_image(tmp_path / path)
    file = write("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    data = ImageCSV(path=str(file)).load()
    assert data.class_names == ("cat", "dog")
    assert data.class_counts.tolist() == [5, 1]
    assert data.image_size == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have the columns path and label, but has none."),
        (
            "file,label\na.jpg,1\n",
            "must have the columns path and label, but has file, label.",
        ),
        (
            "file;label\na.jpg;1\n",
            "must have the columns path and label, but has file, label.",
        ),
        ("path,label\n", "must list images, one a row, but is empty."),
        ("path,label\na.jpg,\n", "line 2 must have a label, but it is empty."),
        ("path,label\n,cat\n", "line 2 must have a path, but it is empty."),
        (
            "path,label\na.jpg\n",
            "line 2 must have as many fields as the heading, but has fewer. Put quotes "
            "around a field that holds the character between fields.",
        ),
        (
            "path,label\na, b.jpg,cat\n",
            "line 2 must have as many fields as the heading, but has more. Put quotes "
            "around a field that holds the character between fields.",
        ),
        (
            "path,label,split\na.jpg,cat,dev\n",
            "line 2 must have the split train, val or test, but has 'dev'.",
        ),
        (
            "path,label,split\na.jpg,cat,\n",
            "line 2 must have the split train, val or test, but has ''.",
        ),
        (
            "path,label,split\na.jpg,cat,test\n",
            "must have rows of split train, but has none.",
        ),
        (
            "path,label\na.jpg,1\n\nb.jpg,1\na.jpg,2\n",
            "line 5 names a.jpg again, which stands in line 2. Remove one of the two.",
        ),
        (
            "path,label\n..\\a.jpg,1\n",
            "line 2 must name a path inside the image folder, but names ../a.jpg. "
            "Write it relative to that folder, without `..`.",
        ),
        (
            "path,label\n../a.jpg,1\n",
            "line 2 must name a path inside the image folder, but names ../a.jpg. "
            "Write it relative to that folder, without `..`.",
        ),
    ],
)
def test_read__refuses(write, text, message):
    file = write(text)
    with pytest.raises(ValueError, match="images") as error:
        _read(file)
    assert str(error.value) == f"`{file}` {message}"


def test_load__a_class_only_in_the_test_split(write):
    file = write("path,label,split\na.jpg,cat,train\nb.jpg,dog,test\n")
    with pytest.raises(ValueError, match="class") as error:
        ImageCSV(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must have a training image of every class, but has none of 'dog'."
    )
