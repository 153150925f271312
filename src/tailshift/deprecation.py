"""Old names of 0.2 that still work for one release, with a warning."""

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds deprecated names, with a warning.

    Use it at the end of a module whose names moved or changed. What an old name points
    to is imported when the old name is used, so it may lie in a higher layer.

    Args:
        module: ``__name__`` of the module that had the names.
        names: Full new name of each old one, such as
            ``"tailshift.target_names.parse_target"``.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = names[name].rpartition(".")
        value = getattr(import_module(home), new)
        warn_deprecated(f"{module}.{name}", f"`{names[name]}`")
        return value

    return get


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function whose keyword arguments have new names.

    Args:
        **names: New name of each old one.

    Example:
        >>> import warnings
        >>> @renamed_arguments(most="max_images")
        ... def read(*, max_images: int) -> int:
        ...     return max_images
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     value = read(most=3)
        >>> value, len(caught)
        (3, 1)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in names.items():
                if old in kwargs and new not in kwargs:
                    warn_deprecated(old, f"`{new}`")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(old: str, new: str) -> property:
    """Return a property that gives a renamed attribute or method, with a warning.

    Args:
        old: The name that the property is given.
        new: The name to use instead.
    """

    def get(self: object) -> Any:
        warn_deprecated(f"{type(self).__name__}.{old}", f"`{new}`")
        return getattr(self, new)

    return property(get, doc=f"Deprecated: use ``{new}``.")
