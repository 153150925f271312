"""Named entries, where each comes from, and the plugins that bring more of them."""

import hashlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")
E = TypeVar("E")

_ENTRY_POINTS = "tailshift.plugins"
"""The group of entry points through which an installed package brings its own."""


def did_you_mean(name: str, known: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, else ``""``.

    Example:
        >>> did_you_mean("lad", ["lade", "softmax"])
        "; did you mean 'lade'?"
        >>> did_you_mean("zzz", ["lade", "softmax"])
        ''
    """
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


@dataclass(frozen=True)
class Origin:
    """Where registered code comes from.

    Example:
        >>> str(Origin("longtail-extras", version="1.2")), str(Origin("mine.py"))
        ('longtail-extras 1.2', 'mine.py')
    """

    name: str
    """``"tailshift"``, an installed distribution, or the path of a file."""
    version: str = ""
    """Version of the distribution."""
    sha256: str = ""
    """Checksum of the file."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


OWN = Origin("tailshift")


class Registry(Generic[T]):
    """Entries of one kind by name; a name is given once, beside the entry.

    Args:
        kind: What an entry is called in messages.
        base: What every entry is an instance or a subclass of.

    Example:
        >>> methods = Registry[type]("method")
        >>> @methods.register("lade")
        ... class LADE:
        ...     '''Balanced Softmax with a regulariser.'''
        >>> methods.get("lade"), methods.name_of(LADE), methods.sentence("lade")
        (<class 'tailshift.registry.LADE'>, 'lade', 'Balanced Softmax with a \
regulariser.')
        >>> methods.get("lad")
        Traceback (most recent call last):
        ...
        ValueError: unknown method 'lad'; did you mean 'lade'? Known: lade
    """

    def __init__(self, kind: str, base: type = object) -> None:
        self.kind = kind
        self._base = base
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}  # what registered each entry
        self._about: dict[str, object] = {}
        _registries.add(self)

    def register(self, name: str, *, about: object = None) -> Callable[[E], E]:
        """Return the decorator that registers a class or function as `name`.

        Args:
            name: A new one.
            about: What describes the entry if it is not its own docstring: the
                function that a module is a form of.
        """
        module = sys._getframe(1).f_globals["__name__"]  # that of the decorated code

        def decorate(entry: E) -> E:
            self._check(name, entry)
            self._entries[name] = entry  # type: ignore[assignment] # checked above
            self._modules[name] = module
            self._about[name] = entry if about is None else about
            return entry

        return decorate

    def _check(self, name: str, entry: object) -> None:
        if name in self._entries:
            raise ValueError(
                f"{self.kind} {name!r} is already registered by {self.origin(name)}. "
                "Choose another name."
            )
        if not issubclass(
            entry if isinstance(entry, type) else type(entry), self._base
        ):
            raise TypeError(
                f"{self.kind} {name!r} must be a {self._base.__name__}, but is {entry}."
            )

    def get(self, name: str) -> T:
        """Return the entry of that name, or name the nearest one in a ValueError."""
        if name in self:
            return self._entries[name]
        hint = did_you_mean(name, self.names()) or ";"
        raise ValueError(
            f"unknown {self.kind} {name!r}{hint} Known: {', '.join(self.names())}"
        )

    def name_of(self, entry: object) -> str:
        """Return the name that an entry is registered under."""
        for name, known in self._entries.items():
            if known is entry:
                return name
        raise ValueError(
            f"{getattr(entry, '__name__', entry)} must be registered as a {self.kind}, "
            "but is not. Put the decorator register(NAME) of its registry above it."
        )

    def sentence(self, name: str) -> str:
        """Return what an entry is: its ``sentence``, or its docstring's first line."""
        entry = self.get(name)
        if isinstance(entry, type):  # what a class inherits is not about itself
            given = vars(entry).get("sentence")
        else:
            given = getattr(entry, "sentence", None)
        return given if isinstance(given, str) else _first_line(self._about[name])

    def origin(self, name: str) -> Origin:
        """Return where an entry comes from."""
        self.get(name)
        return _origin(self._modules.get(name, OWN.name))

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        _load_installed_plugins()
        return sorted(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """Return names and entries in the order in which they were registered."""
        _load_installed_plugins()
        return list(self._entries.items())

    def forget(self, module: str) -> None:
        """Take out what a module has registered."""
        for name in [name for name, by in self._modules.items() if by == module]:
            del self._entries[name], self._modules[name], self._about[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:  # a name of our own costs no look at plugins
            _load_installed_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


_registries: WeakSet[Registry[Any]] = WeakSet()
_origins: dict[str, Origin] = {OWN.name: OWN}  # by the module's top-level name
_has_looked = False


def _first_line(entry: object) -> str:
    """Return a docstring's first line as a list shows it, without its markup."""
    line = (entry.__doc__ or "").strip().partition("\n")[0]
    plain = re.sub(r":\w+:`~?([^`]*)`", r"\1", line).replace("``", "`")
    plain = plain.removeprefix("Return ")
    return plain[:1].upper() + plain[1:]


def is_registered(kind: str, name: str) -> bool:
    """Return whether there is an entry of that kind and name."""
    return any(name in registry for registry in _registries if registry.kind == kind)


def _origin(module: str) -> Origin:
    """Return where a module comes from: known, installed as a plugin, or a file."""
    top = module.partition(".")[0]
    if top not in _origins:
        installed = dict(map(_installed, entry_points(group=_ENTRY_POINTS)))
        _origins.update(installed | _origins)
    if top not in _origins:
        file = getattr(sys.modules.get(module), "__file__", None)
        _origins[top] = _file_origin(Path(file)) if file else Origin(module)
    return _origins[top]


def _file_origin(path: Path) -> Origin:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Origin(str(path), sha256=digest)


def _installed(point: EntryPoint) -> tuple[str, Origin]:
    """Return the top-level module of an entry point, and what was installed."""
    top = point.module.partition(".")[0]
    if point.dist is None:
        return top, Origin(point.name)
    return top, Origin(point.dist.name, version=point.dist.version)


def _load_installed_plugins() -> None:
    """Import what installed packages bring, once; a broken one is a warning."""
    global _has_looked
    if _has_looked:
        return
    _has_looked = True  # before the imports, which may look a name up themselves
    for point in entry_points(group=_ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # it may raise anything
            warnings.warn(
                f"the plugin {_installed(point)[1]} cannot be loaded "
                f"({type(error).__name__}: {error}); what it brings is missing.",
                stacklevel=2,
            )


_PLUGIN = "tailshift_plugin_"  # the modules of files begin with it


def load_plugin(path: str | Path) -> ModuleType:
    """Import a file whose decorators register methods, losses, data sets and so on.

    The file is your own code and is run. Nothing loads one because a run directory or a
    recipe names it. A file that has changed since is loaded again in place of the old.

    Args:
        path: A Python file.

    Returns:
        The module.

    Raises:
        ImportError: If the file cannot be imported.
    """
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise FileNotFoundError(
            f"`plugin` must be a Python file (.py), but {path} is none."
        )
    place = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    stem = re.sub(r"\W", "_", file.stem)
    name = f"{_PLUGIN}{stem}_{place}"
    origin = _file_origin(file)
    if name in sys.modules and _origins[name].sha256 == origin.sha256:
        return sys.modules[name]
    _forget(name)
    _origins[name] = origin
    try:
        return _import_file(name, file)
    except (Exception, SystemExit) as error:
        _forget(name)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        reason = reason if len(reason) <= 500 else f"{reason[:500]}…"
        raise ImportError(f"the plugin {path} cannot be loaded ({reason}).") from error


def loaded_plugins() -> list[str]:
    """Return the files that `load_plugin` has loaded, as they were named."""
    loaded = [name for name in _origins if name.startswith(_PLUGIN)]
    return [_origins[name].name for name in loaded if name in sys.modules]


def _import_file(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pydantic look up annotations
    spec.loader.exec_module(module)
    return module


def _forget(module: str) -> None:
    sys.modules.pop(module, None)
    for registry in _registries:
        registry.forget(module)
