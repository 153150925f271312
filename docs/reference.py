"""Write the references of the site: the API, the commands, the citations.

``docs/conf.py`` writes :func:`pages` into ``docs/generated`` before each build. What is
in them comes from the package: its public names, its commands, its registries.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

import tailshift
from tailshift.cli import app
from tailshift.config import SECTIONS
from tailshift.data import DATASETS
from tailshift.methods import METHODS
from tailshift.registry import Registry

HERE = Path(__file__).parent
ROOMS = {
    "priors": "Priors",
    "compensation": "Compensation",
    "targets": "Targets",
    "predictions": "Predictions",
    "losses": "Losses",
    "metrics": "Metrics",
    "calibration": "Calibration",
    "estimators": "Estimators",
    "sklearn": "scikit-learn",
    "models": "Models and heads",
    "data": "Data sets and samplers",
    "methods": "Methods",
    "config": "Configuration",
    "runs": "Runs",
    "training": "Training",
    "evaluation": "Evaluation",
    "report": "Report",
    "report.plots": "Figures",
    "serving": "Serving",
    "retarget": "Predictions of other models",
    "hooks": "Hooks",
    "registry": "Registries and plugins",
}
"""Modules with a page of their own, in the order of the work, and their titles."""


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path below ``docs/generated``."""
    rooms = [import_module(f"tailshift.{name}") for name in ROOMS]
    return {
        "api/index.rst": _start_page(rooms),
        **{
            f"api/{name}.rst": _room_page(room, title, rooms)
            for room, (name, title) in zip(rooms, ROOMS.items(), strict=True)
        },
        "commands.rst": _command_page(),
        "settings.rst": _settings_page(),
        "references.rst": _reference_page(),
        "runs.md": (HERE.parent / "results" / "README.md").read_text(encoding="utf-8"),
        "changelog.md": _copied("CHANGELOG.md"),
        "contributing.md": _copied("CONTRIBUTING.md"),
    }


def write(folder: Path) -> None:
    """Write the pages that changed, so that Sphinx reads no other again."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _copied(name: str) -> str:
    """Return a page of the repository, with links from the folder of its copy."""
    text = (HERE.parent / name).read_text(encoding="utf-8")
    text = text.replace("](docs/", "](../").replace("](examples/", "](../../examples/")
    return text.replace("](CONTRIBUTING.md", "](contributing.md")


# --- API


def public_names(module: ModuleType) -> list[str]:
    """Return ``__all__``, or what is defined in the module if it has none."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names = [name for name in vars(module) if not name.startswith("_")]
    return sorted(name for name in names if _is_own(name, module))


def _is_own(name: str, module: ModuleType) -> bool:
    value, is_package = getattr(module, name), hasattr(module, "__path__")
    if isinstance(value, Registry):
        return is_package or name in module.__annotations__
    home = value.__module__ if _is_defined(value) else ""
    return home == module.__name__ or (
        is_package and home.startswith(f"{module.__name__}.")
    )


def _is_defined(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _start_page(rooms: list[ModuleType]) -> str:
    """Return the table of what ``import tailshift as ts`` gives."""
    values = {name: getattr(tailshift, name) for name in tailshift.__all__}
    rows, entries = [], []
    for name, value in values.items():
        if inspect.ismodule(value) and not callable(value):
            rows.append(_row(f":doc:`{name}`", value))
            continue
        home = _home(value, rooms) or (tailshift if callable(value) else None)
        assert home is not None, f"`tailshift.{name}` has no page"
        target = f"{home.__name__}.{name}"
        if value is tailshift.report:  # the room is called as the function in it
            target, value = "tailshift.report.report", value.report
        rows.append(_row(f":py:obj:`{name} <{target}>`", value))
        if home is tailshift:
            entries.append(_entry(tailshift, name))
    names = "\n   ".join(ROOMS)
    return (
        f"{_title('API')}``import tailshift as ts`` gives these names; the pages of "
        "the modules have the others.\n\n"
        f"{_table(rows)}\n.. toctree::\n   :hidden:\n\n   {names}\n\n"
        f"{_title('In no module of their own', '-')}"
        ".. py:module:: tailshift\n\n" + "\n".join(entries)
    )


def _room_page(room: ModuleType, title: str, rooms: list[ModuleType]) -> str:
    """Return a table of a module's public names, then each of them in full."""
    rows, entries = [], []
    for name in public_names(room):
        value = getattr(room, name)
        home = _home(value, rooms) or room
        rows.append(_row(f":py:obj:`{name} <{home.__name__}.{name}>`", value))
        if home is room:
            entries.append(_entry(room, name))
    lead = _first_line(room)
    return (
        f"{_title(title)}{lead}\n\n.. py:module:: {room.__name__}\n\n"
        f"{_table(rows)}\n" + "\n".join(entries)
    )


def _home(value: Any, rooms: list[ModuleType]) -> ModuleType | None:
    """Return the first room that has this very object, to document it once."""
    if not _is_defined(value):
        return next((r for r in rooms if r is value), None)
    return next((r for r in rooms if value in _values(r)), None)


def _values(room: ModuleType) -> list[Any]:
    values = [getattr(room, name) for name in public_names(room)]
    return [value for value in values if _is_defined(value)]


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if inspect.isclass(value):
        return f".. autoclass:: {module.__name__}.{name}\n   :members:\n"
    if inspect.isfunction(value):
        return f".. autofunction:: {module.__name__}.{name}\n"
    return f".. py:data:: {name}\n\n{_indent(_about(module, name))}\n"


def _about(module: ModuleType, name: str) -> str:
    """Return what a constant, an alias of a type or a registry is."""
    value = getattr(module, name)
    if isinstance(value, Registry):
        kind = value.kind
        lines = [f"``{entry}``\n    {value.sentence(entry)}" for entry in value.names()]
        return f"Registry: each {kind} by its name.\n\n" + "\n".join(lines)
    text = _comment(module, name)
    alias = str(value).replace("typing.", "").replace("collections.abc.", "")
    shown = repr(value) if isinstance(value, str | int) else alias
    return text if isinstance(value, dict) else f"{text}\n\n``{shown}``".strip()


def _comment(module: ModuleType, name: str) -> str:
    """Return the text below the assignment of a name, wherever in the room it is."""
    folder = Path(str(module.__file__)).parent
    sources = sorted(folder.rglob("*.py")) if hasattr(module, "__path__") else []
    for source in sources or [Path(str(module.__file__))]:
        body = ast.parse(source.read_text(encoding="utf-8")).body
        for line, below in pairwise(body):
            if name in _assigned(line) and isinstance(below, ast.Expr):
                return inspect.cleandoc(ast.literal_eval(below.value))
    return ""


def _assigned(line: ast.stmt) -> list[str]:
    targets = line.targets if isinstance(line, ast.Assign) else []
    targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _row(link: str, value: Any) -> tuple[str, str]:
    if isinstance(value, Registry):
        return link, f"Registry: {', '.join(f'``{name}``' for name in value.names())}"
    is_told = _is_defined(value) or inspect.ismodule(value)
    return link, _first_line(value) if is_told else ""


# --- Command line


def commands(group: Any = None, name: str = "tailshift") -> dict[str, Any]:
    """Return each command that is not hidden, by its full name."""
    group = typer.main.get_command(app) if group is None else group
    context = typer.Context(group, info_name=name)
    found = {}
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        if hasattr(command, "list_commands"):
            found |= commands(command, f"{name} {part}")
        elif not command.hidden:
            found[f"{name} {part}"] = command
    return found


def _command_page() -> str:
    lead = "As ``tailshift COMMAND --help`` prints it.\n\n"
    sections = [_command(name, command) for name, command in commands().items()]
    return _title("Command line") + lead + "\n".join(sections)


def _command(name: str, command: Any) -> str:
    """Return one command: its sentence, arguments and options, an example."""
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [p.get_help_record(context) for p in command.get_params(context)]
    rows = [(f"``{' '.join(r[0].split())}``", _escaped(r[1])) for r in records if r]
    rows.pop()  # --help
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    parts = [_title(name, "-") + _escaped(text), f"::\n\n    {usage}", _table(rows)]
    if command.epilog:
        parts.append(f"{command.epilog.partition(': ')[0]}::\n\n    ")
        parts[-1] += command.epilog.partition(": ")[2]
    return "\n\n".join(parts) + "\n"


# --- Settings


def settings() -> dict[str, dict[str, list[tuple[str, str, str, str]]]]:
    """Return name, type, default and description of each setting, by section."""
    plain = {name: {"": _fields(section, name)} for name, section in SECTIONS.items()}
    by_name = {
        "method": {n: _fields(METHODS.get(n), "method") for n in METHODS.names()},
        "data": {n: _fields(DATASETS.get(n), "data") for n in DATASETS.names()},
    }
    return plain | by_name


def _fields(section: Any, prefix: str) -> list[tuple[str, str, str, str]]:
    """Return the fields of a pydantic model or a dataclass, with their comments."""
    told = _field_comments(section)
    rows = []
    for name, hint in _own_hints(section).items():
        default = _default(section, name)
        rows.append((f"{prefix}.{name}", _kind(hint), default, told.get(name, "")))
    return rows


def _kind(hint: Any) -> str:
    """Return a type as a reader would say it: choices, or the names of types."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(parts[0])
    if origin is Literal:
        return ", ".join(f"``{part!r}``" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in parts)
    if parts:
        return f"{origin.__name__} of {_kind(parts[0])}"
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))


def _own_hints(section: Any) -> dict[str, Any]:
    if hasattr(section, "model_fields"):
        return {name: f.annotation for name, f in section.model_fields.items()}
    hints = get_type_hints(section, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(section) if f.init}


def _default(section: Any, name: str) -> str:
    if hasattr(section, "model_fields"):
        field = section.model_fields[name]
        return "required" if field.is_required() else repr(field.get_default())
    [field] = [f for f in dataclasses.fields(section) if f.name == name]
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    is_made = field.default_factory is not dataclasses.MISSING
    return repr(field.default_factory()) if is_made else "required"


def _field_comments(section: Any) -> dict[str, str]:
    """Return the text below each field, of a class and of those that it extends."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__[:-1]):
        if not owner.__module__.startswith("tailshift"):
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for line, below in pairwise(body.body):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                for name in _assigned(line):
                    found[name] = inspect.cleandoc(str(below.value.value))
    return found


SECTION_TITLES = {
    "model": "Network (model)",
    "optim": "Optimiser and learning rate (optim)",
    "train": "Training (train)",
    "eval": "Evaluation (eval)",
    "method": "Settings of each method (method)",
    "data": "Settings of each data set (data)",
}
"""Headings of the page, by section."""


def _settings_page() -> str:
    """Return all settings of the configuration classes, a table per section."""
    lead = (
        "Change a setting with ``--set KEY=VALUE``, for example "
        "``--set optim.lr=0.1``, or in a recipe of your own (a TOML file). ``none`` "
        "unsets a setting that can be empty. A recipe sets most of these; "
        "``config.json`` of a run has the values that were used.\n\n"
    )
    parts = [_title("Settings"), lead]
    for section, groups in settings().items():
        parts.append(_title(SECTION_TITLES.get(section, section), "-"))
        for name, rows in groups.items():
            if not rows:
                continue
            if name:
                parts.append(_title(f"{section}: {name}", "~"))
            parts.append(_settings_table(rows))
    return "".join(parts)


def _settings_table(rows: list[tuple[str, str, str, str]]) -> str:
    lines = [".. list-table::", "   :widths: 30 70", "   :class: names", ""]
    for name, kind, default, text in rows:
        shown = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", " ".join(text.split()))
        given = "set by the recipe" if default == "required" else f"``{default}``"
        about = f"Type: {kind}. Default: {given}."
        lines += [f"   * - ``{name}``", f"     - {shown}", "", f"       {about}"]
    return "\n".join(lines) + "\n\n"


# --- Citations


def _reference_page() -> str:
    """Return the entries of ``references.bib``, each under its key."""
    text = (HERE / "references.bib").read_text(encoding="utf-8")
    entries = []
    for key, body in re.findall(r"@\w+\{(\w+),\n(.*?)\n\}", text, flags=re.DOTALL):
        fields = dict(re.findall(r"(\w+)\s*=\s*\{(.*?)\},?\s*$", body, flags=re.M))
        where = fields.get("booktitle") or fields.get("journal") or ""
        authors = fields["author"].replace(" and ", "; ").rstrip(".")
        parts = [authors, fields["title"], *filter(None, [where])]
        line = ". ".join(re.sub(r"[{}]", "", part) for part in parts)
        entries.append(f"**[{key}]**\n    {_escaped(line)}, {fields['year']}.")
    lead = "Keys in brackets, in docstrings and on pages, stand for these.\n\n"
    return _title("References") + lead + "\n\n".join(entries) + "\n"


# --- reStructuredText


def _escaped(text: str) -> str:
    return re.sub(r"([*`|_])", r"\\\1", text)


def _indent(text: str) -> str:
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _table(rows: list[tuple[str, str]]) -> str:
    lines = [".. list-table::", "   :widths: 30 70", "   :class: names", ""]
    for left, right in rows:
        lines += [f"   * - {left}", f"     - {' '.join(right.split())}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(HERE / "generated")
