"""The command line's way to name data: ``folder:PATH`` or a data set's name."""

from pathlib import Path

from tailshift.data.dataset import DATASETS
from tailshift.data.own_images import OwnImages

ENDINGS = {".csv": "csv", ".txt": "list", ".lst": "list", ".parquet": "parquet"}
"""What a file of some ending is likely to be."""


def parse_data_option(option: str) -> dict[str, str]:
    """Return the data settings that an option stands for.

    Args:
        option: ``folder:PATH``, ``csv:FILE``, ``list:FILE``, ``parquet:PATH`` or the
            name of a data set.

    Example:
        >>> parse_data_option("folder:photos/birds")
        {'name': 'folder', 'path': 'photos/birds'}
        >>> parse_data_option("digits_lt")
        {'name': 'digits_lt'}
    """
    name, colon, path = option.partition(":")
    if option and name not in DATASETS and Path(option).exists():
        raise ValueError(_form_is_missing(option))
    dataset = DATASETS.get(name)
    if not colon:
        return {"name": name}
    if not issubclass(dataset, OwnImages):
        raise ValueError(
            f"`--data` {option}: {name} takes no path. Say where it lies with "
            "--data-root."
        )
    if not path:
        raise ValueError(f"`--data` {option}: the path is missing.")
    return {"name": name, "path": path}


def _form_is_missing(option: str) -> str:
    """Return the sentence for a path alone, with the form that it seems to be of."""
    path = Path(option)
    form = ENDINGS.get(path.suffix.lower())
    if path.is_dir():
        form = "parquet" if any(path.glob("*.parquet")) else "folder"
    mend = f"{form}:{option}" if form else "csv:, list: or parquet: before it"
    return f"`--data` must say what {option} is, but is only its path. Write {mend}."
