"""The command line's way to name data: ``folder:PATH`` or a data set's name."""

from tailshift.data.dataset import DATASETS
from tailshift.data.own_images import OwnImages


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
