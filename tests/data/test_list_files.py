import pytest

from tailshift.data.list_files import check_every_class, read_list


def _write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_read_list__paths_and_labels(tmp_path):
    text = "train/n01/a.JPEG 0\r\n\n./b/with space.jpg\t12\n  c.jpg   3  \n"
    listed = read_list(_write(tmp_path / "list.txt", text))
    assert listed.paths == ("train/n01/a.JPEG", "b/with space.jpg", "c.jpg")
    assert listed.labels.tolist() == [0, 12, 3]


def test_read_list__a_byte_order_mark_is_no_part_of_the_path(tmp_path):
    listed = read_list(_write(tmp_path / "list.txt", "ä.jpg 0\n", "utf-8-sig"))
    assert listed.paths == ("ä.jpg",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must list images, one `relative/path.jpg label` a line, but is empty."),
        (
            "\n \n",
            "must list images, one `relative/path.jpg label` a line, but is empty.",
        ),
        (
            "a.jpg 0\nb.jpg\n",
            "line 2 must be `relative/path.jpg label`, but is 'b.jpg'.",
        ),
        (
            "a.jpg 0\nb.jpg dog\n",
            "line 2 must be `relative/path.jpg label`, but is 'b.jpg dog'.",
        ),
        ("a.jpg 0\nb.jpg 5\n", "line 2 must have a label in 0..4, but has 5."),
        ("a.jpg -1\n", "line 1 must have a label in 0..4, but has -1."),
        (
            "a.jpg 0\n\nb.jpg 1\n./a.jpg 2\n",
            "line 4 names a.jpg again, which stands in line 1. Remove one of the two.",
        ),
        (
            "/etc/passwd 0\n",
            "line 1 must name a path inside the image folder, but names /etc/passwd. "
            "Write it relative to that folder, without `..`.",
        ),
        (
            "a.jpg 0\nb/../../c.jpg 0\n",
            "line 2 must name a path inside the image folder, but names b/../../c.jpg. "
            "Write it relative to that folder, without `..`.",
        ),
    ],
)
def test_read_list__refuses(tmp_path, text, message):
    file = _write(tmp_path / "list.txt", text)
    with pytest.raises(ValueError, match="list") as error:
        read_list(file, num_classes=5)
    assert str(error.value) == f"`{file}` {message}"


def test_read_list__negative_label_without_a_known_number_of_classes(tmp_path):
    file = _write(tmp_path / "list.txt", "a.jpg -1\n")
    with pytest.raises(ValueError, match="label") as error:
        read_list(file)
    assert str(error.value) == f"`{file}` line 1 must have a label >= 0, but has -1."


def test_read_list__no_file_and_no_utf8(tmp_path):
    file = tmp_path / "list.txt"
    with pytest.raises(FileNotFoundError) as missing:
        read_list(file)
    assert str(missing.value) == f"there is no file `{file}`."
    _write(file, "ä.jpg 0\n", "latin-1")
    with pytest.raises(ValueError, match="UTF-8") as error:
        read_list(file)
    assert str(error.value) == (
        f"`{file}` must be text in UTF-8, but byte 0 is not. Save it as UTF-8."
    )


def test_check_every_class(tmp_path):
    listed = read_list(_write(tmp_path / "list.txt", "a.jpg 0\nb.jpg 2\n"))
    with pytest.raises(ValueError, match="every class") as error:
        check_every_class(listed.labels, 3, "`list.txt`")
    assert str(error.value) == (
        "`list.txt` must list an image of every class in 0..2, but has none of class 1."
    )
