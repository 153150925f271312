"""Where data is: the folder that was named, or the one of the environment."""

import os
from pathlib import Path

VARIABLE = "TAILSHIFT_DATA"


def data_root(root: Path | None) -> Path:
    """Return `root`, or the folder that ``TAILSHIFT_DATA`` names where it is None."""
    if root is not None:
        return root
    if not os.environ.get(VARIABLE):
        raise ValueError(
            "`root` must name the folder of the data, but is None and the environment "
            f"variable {VARIABLE} is not set. Set it, or pass --data-root DIR."
        )
    return Path(os.environ[VARIABLE])
