import pytest

from tailshift.data import parse_data_option


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("folder:photos", {"name": "folder", "path": "photos"}),
        ("csv:/a/b.csv", {"name": "csv", "path": "/a/b.csv"}),
        ("list:C:\\a.txt", {"name": "list", "path": "C:\\a.txt"}),
        ("parquet:data", {"name": "parquet", "path": "data"}),
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
            "cifar10_lt, csv, digits_lt, folder, imagenet_lt, inaturalist2018, list, "
            "parquet, places_lt",
        ),
        (
            "digits_lt:photos",
            "`--data` digits_lt:photos: digits_lt takes no path. Say where it lies "
            "with --data-root.",
        ),
        ("folder:", "`--data` folder:: the path is missing."),
    ],
)
def test_parse_data_option__refuses(option, message):
    with pytest.raises(ValueError, match="data") as error:
        parse_data_option(option)
    assert str(error.value) == message
