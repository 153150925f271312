"""JSON files of SpeciesNet, and of MegaDetector and Timelapse."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tailshift.files import read_text
from tailshift.retarget.scores import ScoreArray
from tailshift.retarget.tables import Chunk, Table

MAX_JSON = 2**31
CLASSIFIER = "classifier"


def open_json(path: Path) -> Table:
    """Open a file of predictions or detections; its keys tell which."""
    text = read_text(path, most=MAX_JSON)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:80]
        raise ValueError(
            f"{path} is no JSON file or is cut short ({reason})."
        ) from None
    if isinstance(content, dict) and isinstance(content.get("predictions"), list):
        if any("target_logits" in _classifications(p) for p in content["predictions"]):
            return TargetLogits(path, text, content)
        return SpeciesNet(path, text, content)
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        return MegaDetector(path, text, content)
    raise ValueError(
        f"{path} must hold `predictions` (SpeciesNet) or `images` (MegaDetector, "
        "Timelapse), but holds neither."
    )


def _classifications(prediction: Any) -> dict[str, Any]:
    found = prediction.get("classifications") if isinstance(prediction, dict) else None
    return found if isinstance(found, dict) else {}


class _JsonTable(Table):
    """Entries of a JSON file, each with a list of classes and a list of scores."""

    is_partial = True

    def __init__(self, path: Path, text: str, content: dict[str, Any]) -> None:
        self.path, self.content = path, content
        self.style = _style(text, content)
        self.entries = [entry for entry in self._entries() if self._pairs(entry)]
        if not self.entries:
            raise ValueError(f"{path} has no classification.")
        names: dict[str, int] = {}
        for entry in self.entries:
            for name, _ in self._pairs(entry):
                names.setdefault(name, len(names))
        self.class_names = tuple(names)
        self._ids = names

    def chunks(self) -> Iterator[Chunk]:
        """Yield the entries that have classifications."""
        for start in range(0, len(self.entries), self.rows_per_chunk):
            part = self.entries[start : start + self.rows_per_chunk]
            scores = np.full((len(part), len(self.class_names)), np.nan)
            for row, entry in zip(scores, part, strict=True):
                for name, score in self._pairs(entry):
                    c = self._ids[name]
                    # A class that an entry has twice makes the entry unusable.
                    row[c] = score if np.isnan(row[c]) else np.inf
            files = [self._file(entry) for entry in part]
            folders = [
                str(PurePosixPath(file.replace("\\", "/")).parent) for file in files
            ]
            yield Chunk(start, scores, {"file": files, "folder": folders}, part)

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write the same content with other scores."""
        for chunk, scores in parts:
            for row, entry in zip(scores, chunk.raw, strict=True):
                if not np.isnan(row).all():
                    ids = [self._ids[name] for name, _ in self._pairs(entry)]
                    self._replace(entry, [float(row[c]) for c in ids])
        text = json.dumps(self.content, **self.style["options"]) + self.style["end"]
        path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")

    column_names = ("file", "folder")

    def _entries(self) -> Iterator[Any]:
        raise NotImplementedError

    def _pairs(self, entry: Any) -> list[tuple[str, float]]:
        raise NotImplementedError

    def _file(self, entry: Any) -> str:
        raise NotImplementedError

    def _replace(self, entry: Any, scores: list[float]) -> None:
        raise NotImplementedError


class SpeciesNet(_JsonTable):
    """Predictions of SpeciesNet: the five largest scores of each image."""

    format = "SpeciesNet JSON"
    _names, _scores = "classes", "scores"

    def _entries(self) -> Iterator[Any]:
        return iter(self.content["predictions"])

    def _pairs(self, entry: Any) -> list[tuple[str, float]]:
        found = _classifications(entry)
        return _paired(found.get(self._names), found.get(self._scores))

    def _file(self, entry: Any) -> str:
        return str(entry.get("filepath", ""))

    def _replace(self, entry: Any, scores: list[float]) -> None:
        """Sort the classes again; the classifier's prediction follows the top one."""
        found = entry["classifications"]
        names, before = found["classes"], found["scores"]
        order = _order(before, scores)
        source = str(entry.get("prediction_source", ""))
        follows = (
            source.startswith(CLASSIFIER)
            and entry.get("prediction") == names[0]
            and entry.get("prediction_score") == before[0]
        )
        found["classes"] = [names[i] for i in order]
        found["scores"] = [scores[i] for i in order]
        if follows:
            entry["prediction"] = found["classes"][0]
            entry["prediction_score"] = found["scores"][0]


class TargetLogits(SpeciesNet):
    """Predictions of SpeciesNet with logits of target classes, which are re-targeted.

    The five largest scores of all classes stay as they are.
    """

    format = "SpeciesNet JSON with target logits"
    is_partial = False
    kind = "logits"
    _names, _scores = "target_classes", "target_logits"

    def _replace(self, entry: Any, scores: list[float]) -> None:
        entry["classifications"]["target_logits"] = scores


class MegaDetector(_JsonTable):
    """Detections of MegaDetector or Timelapse with classifications, one row each."""

    format = "MegaDetector JSON"

    def _entries(self) -> Iterator[Any]:
        categories = self.content.get("classification_categories")
        self._categories = categories if isinstance(categories, dict) else {}
        for image in self.content["images"]:
            found = image.get("detections") if isinstance(image, dict) else None
            for detection in found if isinstance(found, list) else ():
                if isinstance(detection, dict):
                    yield image, detection

    def _pairs(self, entry: Any) -> list[tuple[str, float]]:
        found = entry[1].get("classifications")
        if not isinstance(found, list) or any(
            not isinstance(pair, list) or len(pair) != 2 for pair in found
        ):
            return []
        names = [str(self._categories.get(str(name), name)) for name, _ in found]
        return _paired(names, [score for _, score in found])

    def _file(self, entry: Any) -> str:
        return str(entry[0].get("file", ""))

    def _replace(self, entry: Any, scores: list[float]) -> None:
        found = entry[1]["classifications"]
        order = _order([score for _, score in found], scores)
        found[:] = [[found[i][0], scores[i]] for i in order]


def _order(before: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Return the positions by falling score, unless the file was not in that order."""
    positions = range(len(scores))
    if list(before) != sorted(before, reverse=True):
        return list(positions)
    return sorted(positions, key=lambda i: -scores[i])


def _paired(names: Any, scores: Any) -> list[tuple[str, float]]:
    """Return classes with their scores; NaN for a score that is no number."""
    if not isinstance(names, list) or not isinstance(scores, list):
        return []
    if len(names) != len(scores):
        return [(str(name), np.inf) for name in names]
    return [(str(n), _score(s)) for n, s in zip(names, scores, strict=True)]


def _score(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else np.inf


def _style(text: str, content: Any) -> dict[str, Any]:
    """Return how the file is written: indent, separators, escapes and its end.

    The style is one that writes the content as it stands in the file, if there is one.
    """
    body = text.rstrip()
    end = text[len(body) :]
    line = body.splitlines()[1] if "\n" in body else ""
    indent = line[: len(line) - len(line.lstrip())]
    indents: Sequence[Any] = [len(indent) if indent.strip(" ") == "" else indent]
    indents = indents if "\n" in body else [None]
    separators = [None, (",", ":"), (", ", ": "), (",", ": ")]
    for spaces, between, ascii_only in product(indents, separators, (True, False)):
        options = {
            "indent": spaces,
            "separators": between,
            "ensure_ascii": ascii_only,
        }
        if json.dumps(content, **options) == body.lstrip():
            return {"options": options, "end": end}
    is_ascii = body.isascii()
    return {"options": {"indent": indents[0], "ensure_ascii": is_ascii}, "end": end}
