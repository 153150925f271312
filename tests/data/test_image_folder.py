import pytest

from tailshift.data import ImageFolder
from tailshift.data.own_forms import UnreadFilesWarning


def _read(path):
    return ImageFolder(path=str(path)).read(path)


@pytest.mark.filterwarnings("ignore::tailshift.data.own_forms.UnreadFilesWarning")
def test_read__classes(tmp_path, write_image):
    for path in ("cat/1.jpg", "cat/deep/er/2.PNG", "dog/1.webp", "Bear/1.JPEG"):
        write_image(tmp_path / path)
    for path in ("cat/notes.txt", "cat/.hidden.jpg", ".git/1.jpg", "readme.md"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("passed over")
    found = _read(tmp_path)
    assert found.class_names == ("Bear", "cat", "dog")
    assert list(found.splits) == ["train"]
    assert found.splits["train"].images.paths == (
        *("Bear/1.JPEG", "cat/1.jpg", "cat/deep/er/2.PNG", "dog/1.webp"),
    )
    assert found.splits["train"].labels.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_read__splits(tmp_path, write_image, val):
    for path in ("train/a/1.jpg", "train/b/1.jpg", f"{val}/b/1.jpg", "test/a/1.jpg"):
        write_image(tmp_path / path)
    found = _read(tmp_path)
    assert found.class_names == ("a", "b")
    assert found.splits["val"].images.paths == (f"{val}/b/1.jpg",)
    assert found.splits["val"].labels.tolist() == [1]
    assert found.splits["test"].labels.tolist() == [0]


def test_load__given_splits_are_not_held_out(tmp_path, write_image):
    for split, count in (("train", 10), ("test", 2)):
        for i in range(count):
            write_image(tmp_path / split / "a" / f"{i}.jpg")
            write_image(tmp_path / split / "b" / f"{i}.jpg")
    data = ImageFolder(path=str(tmp_path)).load()
    assert (len(data.train), len(data.val), len(data.test)) == (18, 2, 4)


@pytest.mark.parametrize(
    ("train", "val", "test"), [("Train", "VAL", "Test"), ("training", "Valid", "TEST")]
)
def test_read__splits_in_any_case(tmp_path, write_image, train, val, test):
    for folder in (train, val, test):
        for name in ("cat", "dog"):
            write_image(tmp_path / folder / name / "1.jpg")
    found = _read(tmp_path)
    assert sorted(found.splits) == ["test", "train", "val"]
    assert found.class_names == ("cat", "dog")
    assert found.splits["val"].images.paths == (f"{val}/cat/1.jpg", f"{val}/dog/1.jpg")


def test_read__names_and_counts_what_is_not_read(tmp_path, write_image):
    for name in ("cat/1.jpg", "dog/1.jpg"):
        write_image(tmp_path / name)
    for name in ("cat/2.HEIC", "dog/2.heic", "dog/3.avif", "dog/notes"):
        (tmp_path / name).touch()
    with pytest.warns(UnreadFilesWarning) as warned:
        assert len(_read(tmp_path).splits["train"]) == 2
    assert [str(warning.message) for warning in warned] == [
        f"`{tmp_path}` holds files that are not read: 2 .heic, 1 .avif, 1 notes. Save "
        "images among them in another format (.jpg, .jpeg, .png …)."
    ]
    (tmp_path / "cat" / "1.jpg").unlink()
    with pytest.raises(ValueError, match="must hold") as error:
        _read(tmp_path)
    assert str(error.value) == (
        f"`{tmp_path / 'cat'}` must hold images (.jpg, .jpeg, .png …), but holds none "
        "but 1 .heic, which are not read. Add some, or remove the folder."
    )


def test_read__a_class_called_train(tmp_path, write_image):
    for path in ("train/1.jpg", "tram/1.jpg"):
        write_image(tmp_path / path)
    assert _read(tmp_path).class_names == ("train", "tram")


@pytest.mark.parametrize(
    ("paths", "folders", "message"),
    [
        (
            ("1.jpg",),
            (),
            "`{root}` must hold one folder of images for each class, but holds no "
            "folder.",
        ),
        (
            ("cat/1.jpg",),
            ("dog",),
            "`{root}/dog` must hold images (.jpg, .jpeg, .png …), but holds none. Add "
            "some, or remove the folder.",
        ),
        (
            ("train/cat/1.jpg", "test/dog/1.jpg"),
            (),
            "`{root}/test/dog` must be a class of the training split, but that has no "
            "folder dog.",
        ),
        (
            ("train/cat/1.jpg", "extra/cat/1.jpg"),
            (),
            "`{root}/extra` must be a split (train, val or test), because `{root}` has "
            "a split train. Move it, or remove the splits.",
        ),
        (
            ("train/cat/1.jpg", "val/cat/1.jpg", "valid/cat/1.jpg"),
            (),
            "`{root}` must have one folder for val, but has val and valid.",
        ),
    ],
)
def test_read__refuses(tmp_path, write_image, paths, folders, message):
    for path in paths:
        write_image(tmp_path / path)
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(ValueError, match="must") as error:
        _read(tmp_path)
    assert str(error.value) == message.format(root=tmp_path)


def test_read__no_folder(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        _read(tmp_path / "none")
    assert str(error.value) == f"there is no folder `{tmp_path / 'none'}`."
