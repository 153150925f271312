import pytest

from tailshift.data import ImageList


@pytest.fixture
def root(tmp_path, write_image):
    lines = []
    for c, count in (("cat", 6), ("dog", 3)):
        for i in range(count):
            write_image(tmp_path / "pictures" / c / f"{i}.jpg", seed=i)
            lines.append(f"{c}/{i}.jpg {int(c == 'dog')}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    (tmp_path / "pictures" / "list.txt").write_text("".join(lines))
    return tmp_path


def test_load__names_from_folders_and_a_hold_out(root):
    data = ImageList(path=str(root / "pictures" / "list.txt")).load()
    assert data.class_names == ("cat", "dog")
    assert data.class_counts.tolist() == [4, 1]


def test_load__lists_of_all_splits_and_images_elsewhere(root, write_image):
    for name in ("val", "test"):
        for c in range(2):
            write_image(root / "pictures" / f"{name}{c}.jpg")
        (root / f"{name}.txt").write_text(f"{name}0.jpg 0\n{name}1.jpg 1\n")
    data = ImageList(
        path=str(root / "list.txt"),
        val_path=str(root / "val.txt"),
        test_path=str(root / "test.txt"),
        image_root=str(root / "pictures"),
    ).load()
    assert (len(data.train), len(data.val), len(data.test)) == (9, 2, 2)


def test_load__empty_class(root):
    file = root / "pictures" / "list.txt"
    file.write_text(file.read_text() + "cat/x.jpg 3\n")
    with pytest.raises(ValueError, match="class") as error:
        ImageList(path=str(file)).load()
    assert str(error.value) == (
        f"`{file}` must list an image of every class in 0..3, but has none of class 2."
    )
