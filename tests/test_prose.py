"""Text for readers: the field's words, short sentences, short summaries."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tailshift"

BANNED = {
    r"class mix(?:es)?|label mix|training mix": "class distribution, or prior",
    r"carried prior|trained prior|prior that (?:the |its )?logits carry": "logit prior",
    r"answers? for (?:a|an|another|the|it)\b": "re-target to, or use",
    r"feature bank": "feature cache",
    r"likeliest": "most likely",
    r"seldom": "rarely",
    r"anew": "again",
    r"beside": "next to, or alongside",
    r"mended": "fixed",
    r"by the clock|processor (?:minutes|seconds|time)": "wall time, or CPU time",
    r"whose word": "adaptation policy",
    r"nobody": "say who does what",
}
"""Words of the old dialect, as regular expressions, and what to write instead."""

MAX_WORDS = 45
"""Maximum length of a sentence in Markdown."""

MAX_SUMMARY = 55
"""Maximum length of a command's summary, which is shown in `tailshift --help`."""

MAX_FINDINGS = {"words": 8, "sentences": 1, "summaries": 0}
"""Findings that are left from before; the numbers only shrink."""


def _pages() -> list[Path]:
    """Return the Markdown files except the history and what is generated."""
    generated = {"generated", "gallery", "build", ".venv", "node_modules"}
    return [
        path
        for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
        if path.name != "CHANGELOG.md" and not generated & set(path.parts)
    ]


def _prose(markdown: str) -> str:
    """Return Markdown without code, tables, links' targets and formulas."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.M | re.S)
    text = re.sub(r"^(?:    |\||\+|#|```).*$", "", text, flags=re.M)
    text = re.sub(r"\$\$?.*?\$\$?|`[^`]*`", "x", text, flags=re.S)
    return re.sub(r"\]\([^)]*\)", "]", text)


def _strings(node: ast.AST) -> str:
    return "".join(
        str(part.value)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def _messages(path: Path) -> Iterator[str]:
    """Yield the texts of errors and of the command line's help in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise):
            yield _strings(node)
        if isinstance(node, ast.keyword) and node.arg in ("help", "epilog"):
            yield _strings(node)
        if _is_command(node):
            assert isinstance(node, ast.FunctionDef)
            yield ast.get_docstring(node) or ""


def _is_command(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ".command" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of everything that a user reads."""
    for path in _pages():
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted(SOURCE.rglob("*.py")):
        for text in _messages(path):
            yield str(path.relative_to(ROOT)), text
    for path in sorted([*SOURCE.rglob("*.html"), *SOURCE.rglob("*.j2")]):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _words() -> list[str]:
    return [
        f"{name}: {found[0]!r}; write {instead}"
        for name, text in _texts()
        for banned, instead in BANNED.items()
        for found in re.finditer(rf"\b(?:{banned})\b", text, flags=re.I)
    ]


def _sentences() -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence[:60]}…"
        for path in _pages()
        for block in re.split(r"\n\s*\n|\n\s*[-*\d]", _prose(path.read_text("utf-8")))
        for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(block.split()))
        if len(sentence.split()) > MAX_WORDS
    ]


def _summaries() -> list[str]:
    found = []
    for path in sorted((SOURCE / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and _is_command(node):
                first = (ast.get_docstring(node) or "").split("\n")[0]
                if len(first) > MAX_SUMMARY:
                    found.append(f"{path.name} {node.name}: {len(first)}: {first}")
    return found


FINDINGS = {"words": _words, "sentences": _sentences, "summaries": _summaries}


@pytest.mark.parametrize("kind", FINDINGS)
def test_prose__has_no_more_findings(kind: str) -> None:
    found = FINDINGS[kind]()
    assert len(found) <= MAX_FINDINGS[kind], "\n".join(found)


def test_prose__finds_the_old_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself can fail: it finds words in a text of the old kind."""
    old = "Answers for the likeliest class mix. Beside it stands the carried prior."
    monkeypatch.setattr(f"{__name__}._texts", lambda: [("old", old)])
    assert len(_words()) == 5
