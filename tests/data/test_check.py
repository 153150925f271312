import os

import pytest

from tailshift.data import ImageCSV, PlacesLT, check, check_data


@pytest.fixture
def folder(tmp_path, write_image):
    for c, count in (("cat", 20), ("dog", 10)):
        for i in range(count):
            write_image(tmp_path / c / f"{i}.jpg", seed=i)
    return tmp_path


def test_check_data__a_sound_folder(folder):
    result = check_data(f"folder:{folder}")
    assert result.is_sound
    assert result.summary[:-1] == (
        "folder: 2 classes (cat, dog)",
        "train: 21 images, 7 to 14 a class, 21 decoded",
        "val: 3 images, 1 to 2 a class, 3 decoded",
        "test: 6 images, 2 to 4 a class, 6 decoded",
        "sizes: 40 × 32 pixels; modes: 30 RGB",
        "a network trained from scratch sees: resized to 32 × 32 pixels; in training "
        "shifted by up to 4, not mirrored",
    )
    assert result.summary[-1].startswith("fingerprint of the training split: ")


def test_check_data__sizes_modes_and_many_classes(tmp_path, write_image):
    for c in range(7):
        for i in range(4):
            size, mode = (300 + 10 * c, 200 + 10 * i), "L" if c == 6 else "RGB"
            write_image(tmp_path / f"class {c}" / f"{i}.png", size=size, mode=mode)
    summary = check_data(f"folder:{tmp_path}").summary
    assert summary[0] == (
        "folder: 7 classes (class 0, class 1, class 2, class 3, class 4, …)"
    )
    assert summary[4:6] == (
        "sizes: 300 × 200 to 360 × 230, median 310 × 230 pixels; modes: 24 RGB, 4 L",
        "a network trained from scratch sees: resized to 224 × 224 pixels, the middle "
        "of the image; in training cropped at random to 35% to 100% of the area, not "
        "mirrored",
    )


def test_check_data__one_class(tmp_path, write_image):
    for i in range(4):
        write_image(tmp_path / "cat" / f"{i}.png")
    assert check_data(f"folder:{tmp_path}").faults == (
        f"`{tmp_path}` must have images of two classes at least, but has one class, "
        "'cat'.",
    )


@pytest.mark.filterwarnings("ignore::tailshift.data.own_forms.UnreadFilesWarning")
def test_check_data__a_pipe_and_a_program_among_the_images(folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    (folder / "dog" / "page.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%EOF\n")
    assert set(check_data(f"folder:{folder}").faults) == {
        f"`{folder / 'cat' / 'pipe.png'}` is not a regular file.",
        f"`{folder / 'dog' / 'page.png'}` is not an image of a known format.",
    }


def test_check_data__missing_and_broken_images(tmp_path, write_image):
    splits = ["train"] * 8 + ["val"] * 2 + ["test"] * 2
    rows = [f"{i}.jpg,{i % 2},{split}\n" for i, split in enumerate(splits)]
    (tmp_path / "images.csv").write_text("path,label,split\n" + "".join(rows))
    for i in set(range(12)) - {3, 4, 11}:
        write_image(tmp_path / f"{i}.jpg")
    (tmp_path / "9.jpg").write_text("no image")
    result = check_data(ImageCSV(path=str(tmp_path / "images.csv"), image_size=16))
    assert not result.is_sound
    assert result.summary[1:4] == (
        "train: 8 images, 4 to 4 a class, 6 decoded",
        "val: 2 images, 1 to 1 a class, 1 decoded",
        "test: 2 images, 1 to 1 a class, 1 decoded",
    )
    assert result.faults == (
        f"2 of the 8 images of train are missing, the first: `{tmp_path / '3.jpg'}`.",
        f"`{tmp_path / '9.jpg'}` is not an image of a known format.",
        f"1 of the 2 images of test are missing, the first: `{tmp_path / '11.jpg'}`.",
    )


def test_check_data__broken_images_are_named_up_to_ten(folder):
    for i in range(20):
        (folder / "cat" / f"{i}.jpg").write_text("no image")
    faults = check_data(f"folder:{folder}").faults
    assert len(faults) == 10 + 1 + 2 + 4  # 14 of train, 2 of val, 4 of test
    assert faults[0].endswith(".jpg` is not an image of a known format.")
    assert faults[10] == "… and 4 more of train."


def test_check_data__decodes_a_sample_or_all(folder, monkeypatch):
    monkeypatch.setattr(check, "SAMPLED", 5)
    some, all_ = (
        check_data(f"folder:{folder}", all_images=flag).summary[1]
        for flag in (False, True)
    )
    assert some == "train: 21 images, 7 to 14 a class, 5 decoded"
    assert all_ == "train: 21 images, 7 to 14 a class, 21 decoded"


def test_check_data__a_benchmark_that_is_not_there(tmp_path):
    result = check_data("places_lt", tmp_path)
    assert result.summary == ()
    assert result.faults == (
        "places_lt needs the public list Places_LT_train.txt, but it is in none of "
        f"`{tmp_path}`, `{tmp_path / 'lists'}`, `{tmp_path / 'places_lt'}`. Put it "
        "there, or name another folder with --data-root.",
    )


def test_check_data__a_cut_down_benchmark_has_other_counts(tmp_path, write_benchmark):
    root = write_benchmark(tmp_path, "places_lt")
    (fault,) = check_data("places_lt", root).faults
    assert fault == (
        f"`{root / 'Places_LT_train.txt'}` must list an image of every class in "
        "0..364, but has none of class 3."
    )
    assert check_data(PlacesLT(check_counts=False), root).is_sound


def test_check_data__data_in_memory():
    assert check_data("digits_lt").summary[2:4] == (
        "val: 55 images, 1 to 20 a class",
        "test: 500 images, 50 to 50 a class",
    )
