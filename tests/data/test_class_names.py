import torch

from tailshift.data.list_files import folder_names


def test_folder_names__as_deep_as_needed():
    paths = ["p/a/airfield/1.jpg", "p/b/shop/2.jpg", "p/s/shop/3.jpg"]
    names = folder_names(paths, torch.tensor([0, 1, 2]), num_classes=3)
    assert names == ("a/airfield", "b/shop", "s/shop")


def test_folder_names__a_class_in_two_folders_has_no_name():
    paths = ["a/1.jpg", "b/2.jpg", "c/3.jpg"]
    names = folder_names(paths, torch.tensor([0, 0, 1]), num_classes=2)
    assert names == ("class 0", "class 1")


def test_folder_names__images_without_a_folder():
    assert folder_names(["1.jpg", "b/2.jpg"], torch.tensor([0, 1]), 2) == (
        "class 0",
        "class 1",
    )
