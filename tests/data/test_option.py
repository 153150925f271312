from pathlib import Path

import pytest

from tailshift.data import parse_data_option


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("folder:photos", {"name": "folder", "path": "photos"}),
        ("csv:/a/b.csv", {"name": "csv", "path": "/a/b.csv"}),
        ("list:C:\\a.txt", {"name": "list", "path": "C:\\a.txt"}),
        ("parquet:data", {"name": "parquet", "path": "data"}),
        ("datasets:owner/birds", {"name": "datasets", "path": "owner/birds"}),
        ("digits_lt", {"name": "digits_lt"}),
    ],
)
def test_parse_data_option(option, settings):
    assert parse_data_option(option) == settings


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "foldr:photos",
            "unknown data set 'foldr'; did you mean 'folder'? Known: cifar100_lt, "
            "cifar10_lt, csv, datasets, digits_lt, features, folder, imagenet_lt, "
            "inaturalist2018, list, parquet, places_lt",
        ),
        (
            "digits_lt:photos",
            "`--data` digits_lt:photos: digits_lt takes no path. Say where it lies "
            "with --data-root.",
        ),
        ("folder:", "`--data` folder:: the path is missing."),
        (
            "",
            "unknown data set ''; Known: cifar100_lt, cifar10_lt, csv, datasets, "
            "digits_lt, features, folder, imagenet_lt, inaturalist2018, list, parquet, "
            "places_lt",
        ),
    ],
)
def test_parse_data_option__refuses(option, message):
    with pytest.raises(ValueError, match="data") as error:
        parse_data_option(option)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("photos/birds.CSV", "Did you mean `--data csv:photos/birds.CSV`?"),
        ("photos/birds.txt", "Did you mean `--data list:photos/birds.txt`?"),
        (
            "tables/train.parquet",
            "Did you mean `--data parquet:tables/train.parquet`?",
        ),
        ("photos/C:x.csv", "Did you mean `--data csv:photos/C:x.csv`?"),
        ("photos/a.jpg", "Put csv:, list: or parquet: first."),
    ],
)
def test_parse_data_option__a_path_alone(path, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "tables", "digits_lt"):
        Path(folder).mkdir()
    for name in ("birds.CSV", "birds.txt", "C:x.csv", "a.jpg"):
        Path("photos", name).touch()
    Path("tables", "train.parquet").touch()
    with pytest.raises(ValueError, match="type") as error:
        parse_data_option(path)
    assert str(error.value) == f"`--data {path}` has no type. {remedy}"
    assert parse_data_option("./photos") == {"name": "folder", "path": "./photos"}
    assert parse_data_option("tables") == {"name": "parquet", "path": "tables"}
    assert parse_data_option("digits_lt") == {"name": "digits_lt"}  # not the folder
