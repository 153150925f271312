"""Old names of 0.2 that still work for one release, with a warning."""

import warnings


def warn_deprecated(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that a name is deprecated and say what to use instead.

    Args:
        old: The old name, as the caller typed it.
        new: What to type instead.
        stacklevel: Frames between this function and the caller's code, plus 1.
    """
    warnings.warn(
        f"`{old}` is deprecated and will be removed in 0.4. Use {new}.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
