"""The documents say what is there."""

import ast
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def test_equations__name_tests_that_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _read("docs/equations.md"))
    assert len(named) > 15
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert function in functions, f"{path} has no {function}"


def test_citations__are_in_the_bibliography():
    keys = set(re.findall(r"@\w+\{(\w+),", _read("docs/references.bib")))
    sources = [*ROOT.glob("src/**/*.py"), ROOT / "docs/equations.md"]
    for source in sources:
        text = source.read_text(encoding="utf-8")
        for key in re.findall(r"\[([a-z]+\d{4}[a-z]?)\]", text):
            assert key in keys, f"{source} cites {key}"
        for key in re.findall(r"citation = \"(\w+)\"", text):
            assert key in keys, f"{source} cites {key}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_readme__loop_on_signals_runs_as_shown():
    [code] = re.findall(r"```python\n(.*?)```", _read("README.md"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    probs, served = names["probs"], names["served"]
    assert torch.allclose(probs.sum(-1), torch.ones(5))
    x, y = names["x"], names["y"]
    accuracy = (served(x).argmax(-1) == y).float().mean()
    assert accuracy > 0.9  # it has learnt, not only run


HOOKS = {  # the library that a section of docs/hooks.md needs
    "PyTorch: samplers": "torch",
    "PyTorch and Lightning": "lightning.pytorch",
    "Hugging Face": "transformers",
    "scikit-learn": "imblearn",
    "MLflow": "mlflow.pyfunc",
}


@pytest.mark.filterwarnings("ignore")  # of the libraries, as a user would see them
@pytest.mark.parametrize("section", HOOKS)
def test_hooks__run_as_shown(section, tmp_path, monkeypatch):
    pytest.importorskip(HOOKS[section], reason=f"{HOOKS[section]} is not installed")
    shared, *sections = re.split(r"^## ", _read("docs/hooks.md"), flags=re.MULTILINE)
    [text] = [text for text in sections if text.startswith(section)]
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "hooks"}
    prelude = re.findall(r"```python\n(.*?)```", shared, flags=re.DOTALL)
    for code in (*prelude, *blocks):
        assert len([line for line in code.splitlines() if line]) <= 15
        exec(compile(code, "docs/hooks.md", "exec"), names)


@pytest.mark.parametrize(
    "path", ["README.md", "CONTRIBUTING.md", "docs/equations.md", "docs/hooks.md"]
)
def test_links__lead_to_files(path):
    for link in re.findall(r"\]\(([^)#]+)\)", _read(path)):
        if not link.startswith("http"):
            assert ((ROOT / path).parent / link).exists(), f"{path} links to {link}"


def _read(path):
    return (ROOT / path).read_text(encoding="utf-8")
