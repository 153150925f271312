"""Names of targets: class distributions written as text."""

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from tailshift.priors import as_float

__all__ = ["SOURCE", "USAGES", "Shift", "is_shift", "parse_target"]

SOURCE = "source"


class _Form(NamedTuple):
    """How the targets of one kind are written."""

    usage: str
    rest: str  # what follows the kind, as a regular expression
    rule: str
    low: float = 1.0
    high: float = math.inf  # which is beyond what is allowed


_VALUE, _SEED = ":(?P<value>[^:]+)", "(:seed(?P<seed>[0-9]{1,18}))?"
_CLASSES = ":(?P<classes>.+)"
_ALONE = "with nothing behind it"
_RATIO = "with a ratio >= 1"
_MAYBE_SEED = "and perhaps :seedN"
_POSITIVE = math.ulp(0.0)
_FORMS = {
    form.usage.partition(":")[0]: form
    for form in (
        _Form(SOURCE, "", _ALONE),
        _Form("uniform", "", _ALONE),
        _Form("forward:RATIO", _VALUE, _RATIO),
        _Form("backward:RATIO", _VALUE, _RATIO),
        _Form("permuted:RATIO", _VALUE + _SEED, f"{_RATIO} {_MAYBE_SEED}"),
        _Form(
            "dirichlet:ALPHA", _VALUE + _SEED, f"with α > 0 {_MAYBE_SEED}", _POSITIVE
        ),
        _Form(
            "tweak:CLASS:SHARE",
            _CLASSES + _VALUE,
            "with a class and a share between 0 and 1",
            _POSITIVE,
            1.0,
        ),
        _Form("knock_out:CLASS,CLASS", _CLASSES, "with classes"),
    )
}

_SHARES = "SHARE,SHARE"
_BY_CLASS = "CLASS=SHARE,CLASS=SHARE"
_NUMBER = r"[0-9.]+(?:[eE][-+]?[0-9]+)?"
USAGES = (*(form.usage for form in _FORMS.values()), _SHARES, _BY_CLASS)
"""The names that are understood; permuted and dirichlet take a ``:seedN`` more."""


@dataclass(frozen=True)
class Shift:
    """A label distribution by name.

    ``source``, that of the training data; ``uniform``; ``forward:50`` and
    ``backward:50``, a long tail in the order of the training counts or against it;
    ``permuted:50``, a long tail in random order; ``dirichlet:1``, drawn from
    Dirichlet(α, …, α); ``tweak:kea:0.5``, class kea has half of the samples and the
    others share the rest; ``knock_out:kea,kiwi``, without these classes, the others
    alike; ``0.1,0.2,0.7``, one share per class; ``kea=0.5,kiwi=0.2``, the shares of
    these classes, and the others share the rest. A class is given by its name, or by
    its id if no class has that name. The random ones are those of seed 0, or of the
    seed in ``permuted:50:seed3``.
    """

    name: str
    """The target as it was written."""
    kind: str
    value: float = 1.0
    """Ratio, α, or the share of the tweaked class."""
    classes: tuple[str, ...] = ()
    """The classes that are named, as they were written."""
    seed: int = 0
    shares: tuple[float, ...] = ()
    """One share per class, or per class that is named."""

    @property
    def needs_order(self) -> bool:
        """Whether the training counts decide which class gets what."""
        return self.kind in (SOURCE, "forward", "backward")


def is_shift(name: str) -> bool:
    """Return whether a name is that of a target, correct or not."""
    return name.partition(":")[0] in _FORMS or _shares_kind(name) is not None


def _shares_kind(name: str) -> str | None:
    """Return which of the two forms of shares a name has; None for neither."""
    if re.fullmatch(f"{_NUMBER}(,{_NUMBER})+", name):
        return "shares"
    return "by_class" if re.fullmatch(f".+={_NUMBER}", name) else None


def parse_target(spec: str) -> Shift:
    """Return the parts of a target's name.

    Example:
        >>> parse_target("dirichlet:0.5:seed3").seed
        3
        >>> parse_target("knock_out:3,kea").classes
        ('3', 'kea')
        >>> parse_target("kea=0.5,kiwi=0.2").shares
        (0.5, 0.2)
    """
    kind = spec.partition(":")[0]
    if kind not in _FORMS and (shares := _shares_kind(spec)) is not None:
        return _parse_shares(spec, shares)
    if kind not in _FORMS:
        raise ValueError(
            f"`target` must be one of {', '.join(USAGES)}, a file of counts or shares "
            f"or, in an evaluation, as_is, but is {spec!r}{_suggested(spec)}"
        )
    form = _FORMS[kind]
    found = re.fullmatch(form.rest, spec[len(kind) :])
    parts = found.groupdict() if found else {}
    value = as_float(parts.get("value", "1"))
    classes = [parts["classes"]] if "classes" in parts else []
    if kind == "knock_out":
        classes = ",".join(classes).split(",")
    if found is None or not form.low <= value < form.high or not all(classes):
        raise ValueError(
            f"`target` must be like {form.usage}, {form.rule}, but is {spec!r}."
        )
    return Shift(spec, kind, value, tuple(classes), int(parts.get("seed") or 0))


def _suggested(spec: str) -> str:
    """Return the end of an error: the target that was probably meant, if any."""
    kind, colon, rest = spec.partition(":")
    close = get_close_matches(kind.lower().replace("-", "_"), _FORMS, n=1, cutoff=0.6)
    return f". Did you mean {close[0] + colon + rest!r}?" if close else "."


def _parse_shares(spec: str, kind: str) -> Shift:
    """Return the target of shares written by hand, with or without class names."""
    parts = re.findall(f"(?:([^=]+)=)?({_NUMBER})(?:,|$)", spec)
    if ",".join(f"{name}={share}" if name else share for name, share in parts) != spec:
        raise ValueError(f"`target` must be like {_BY_CLASS}, but is {spec!r}.")
    classes = tuple(name for name, _ in parts if name)
    shares = tuple(as_float(number) for _, number in parts)
    total = math.fsum(shares)
    is_whole = math.isclose(total, 1, abs_tol=0.01)
    is_valid = is_whole if kind == "shares" else total <= 1 or is_whole
    if not is_valid or not all(0 <= share <= 1 for share in shares):
        rule = "sum to 1" if kind == "shares" else "be at most 1 in total"
        raise ValueError(
            f"`target` must have shares between 0 and 1 that {rule}, but {spec!r} has "
            f"the sum {total:g}."
        )
    return Shift(spec, kind, classes=classes, shares=shares)
