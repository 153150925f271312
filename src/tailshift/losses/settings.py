"""The numbers that a loss is set with, checked."""

import math


def check_not_negative(name: str, value: float) -> None:
    """Refuse a setting below 0, or one that is not finite.

    Example:
        >>> check_not_negative("gamma", -1.0)
        Traceback (most recent call last):
        ...
        ValueError: `gamma` must be finite and not negative, but is -1.0.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be finite and not negative, but is {value}.")


def check_positive(name: str, value: float) -> None:
    """Refuse a setting that is not above 0, or not finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be finite and positive, but is {value}.")


def check_share(name: str, value: float) -> None:
    """Refuse a setting outside of 0..1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must lie in [0, 1], but is {value}.")
