"""The documents say what is there."""

import ast
import csv
import importlib
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tailshift as ts

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
def test_loss_guide__loop_on_signals_runs_as_shown():
    [code] = _programs("docs/guide/loss.md")
    names: dict[str, object] = {}
    exec(compile(code, "loss.md", "exec"), names)
    probs, model = names["probs"], names["model"]
    assert torch.allclose(probs.sum(-1), torch.ones(5))
    x, y = names["x"], names["y"]
    accuracy = (model(x).argmax(-1) == y).float().mean()
    assert accuracy > 0.9  # it has learnt, not only run


def test_existing_model__programs_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    with warnings.catch_warnings(record=True):  # random logits: few samples, and so on
        warnings.simplefilter("always")
        for code in _programs("docs/guide/existing_model.md"):
            exec(compile(code, "existing_model.md", "exec"), names)
    y = names["y"][1000:]
    assert np.mean(names["predictions"][y > 4] == y[y > 4]) > 0.85
    assert names["probs"].shape == (5, 3)
    assert len(ts.Predictions.load("held_out.safetensors").labels) == 300


@pytest.mark.parametrize(
    "page",
    [
        "concepts",
        "guide/comparison",
        "guide/pitfalls",
        "guide/which_estimator",
        "guide/which_method",
    ],
)
def test_pages__programs_print_what_is_said(page, capsys):
    [code] = _programs(f"docs/{page}.md")
    exec(compile(code, page, "exec"), {})
    assert f"prints `{capsys.readouterr().out.strip()}`" in _read(f"docs/{page}.md")


@pytest.mark.parametrize("page", ["estimation", "certificate"])
def test_pages__programs_on_saved_logits_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held_out, target_logits = _held_out([600, 300, 100]), _logits([100, 300, 600])[0]
    held_out.save("held_out.safetensors")
    [code] = re.findall(
        r"```python\n(.*?)```", _read(f"docs/{page}.md"), flags=re.DOTALL
    )
    names = {"target_logits": target_logits}
    exec(compile(code, page, "exec"), names)
    p_t = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    assert (names["found"].target_prior - p_t).abs().sum() < 0.15
    start = re.split(r" \(p = | by [+-]", names["found"].reason)[0]
    assert start.split(" in 2000")[0] in _read(f"docs/{page}.md")


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_sites__programs_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held_out = _held_out([400, 300, 200, 100])
    run = SimpleNamespace(
        class_names=list("abcd"),
        source_prior=held_out.logit_prior,
        logit_prior=held_out.logit_prior,
        predictions=lambda split: held_out,
    )
    monkeypatch.setattr(ts, "load_run", lambda directory: run, raising=False)
    logits = _logits([10, 20, 30, 40])[0]
    names = {"ford_logits": logits, "logits": logits}
    for code in re.findall(r"```python\n(.*?)```", _read("docs/sites.md"), flags=re.S):
        exec(compile(code, "sites.md", "exec"), names)
    book = ts.SitePriors.load("book.json")
    assert torch.equal(book.prior("ford"), names["sites"].prior("ford"))
    assert book.prior("ford")[3] > book.prior("hill")[3]


def test_file_formats__program_writes_a_file_of_logits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [code] = _programs("docs/reference/file_formats.md")
    exec(compile(code, "file_formats.md", "exec"), {})
    saved = ts.Predictions.load("softmax.npz")
    assert saved.logits.shape == (6, 3)
    assert saved.logit_prior.tolist() == [0.6, 0.3, 0.1]


def test_start_page__has_the_commands_of_the_readme():
    commands = re.findall(r"^    (tailshift .*)$", _read("docs/index.md"), flags=re.M)
    assert len(commands) == 2
    for command in commands:
        assert f"    {command}" in _read("README.md")


DOCS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if not {"generated", "gallery"} & set(path.parts)
)
PAGES = ["README.md", "CONTRIBUTING.md", "results/README.md", *DOCS]


@pytest.mark.parametrize("path", PAGES)
def test_links__lead_to_files_and_headings(path):
    text = re.sub(r"```.*?```", "", _read(path), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = ((ROOT / path).parent / name).resolve() if name else ROOT / path
        assert _source(target).exists(), f"{path} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{path} links to {link}"


def test_contents__name_every_page():
    """What no table of contents names is not found on the site."""
    listed = set()
    for path in DOCS:
        for block in re.findall(r"```\{toctree\}(.*?)```", _read(path), flags=re.S):
            lines = [line for line in block.splitlines() if line and line[0] != ":"]
            names = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
            listed |= {((ROOT / path).parent / name).resolve() for name in names}
    pages = {(ROOT / path).with_suffix("") for path in DOCS}
    assert pages - listed == {ROOT / "docs" / "index"}
    for page in listed - pages:
        suffix = ".md" if page.name == "runs" else ".rst"
        assert _source(page.with_suffix(suffix)).exists()


def _source(target):
    """Return what a page is made from that only a build of the site writes."""
    docs = ROOT / "docs"
    if target.parent == docs / "gallery":
        name = "GALLERY_HEADER.rst" if target.stem == "index" else f"{target.stem}.py"
        return ROOT / "examples" / name
    return docs / "reference.py" if docs / "generated" in target.parents else target


def _anchors(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.M)
    bare = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return [heading.strip().replace(" ", "-") for heading in bare]


def _logits(counts):
    """Return logits of clouds, which carry the uniform prior, and the labels."""
    num_classes = len(counts)
    y = torch.repeat_interleave(torch.arange(num_classes), torch.tensor(counts))
    x = torch.randn(len(y), num_classes) + 2 * torch.eye(num_classes)[y]
    return 2 * x, y


def _held_out(counts):
    uniform = ts.priors.uniform(len(counts))
    f, y = _logits(counts)
    n = torch.tensor(counts)
    return ts.Predictions(f, y, source_counts=n, logit_prior=uniform)


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


def _read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def _programs(path):
    return re.findall(r"```python\n(.*?)```", _read(path), flags=re.DOTALL)


def test_rivals__tables_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    rivals = importlib.import_module("rivals")
    with rivals.RESULTS.open(encoding="utf-8", newline="") as file:
        tables = rivals.blocks(list(csv.DictReader(file)))
    page = _read("docs/estimation.md")
    for name, table in tables.items():
        shown = f"<!-- {name}: begin -->\n\n{table}\n\n<!-- {name}: end -->"
        assert page.count(shown) == 1, name


def test_tables__are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr("sys.argv", ["tables.py", "--check"])
    importlib.import_module("tables").main()


@pytest.mark.parametrize("table", ["table9", "table10"])
def test_kept_logits__fill_the_tables_of_the_paper(table):
    plan = ts.reproduce(
        table,
        runs=ROOT / "results",
        logits=ROOT / "results" / "logits",
        dry_run=True,
    )
    numbers = plan.comparisons()
    assert len(numbers) >= 5 * 7  # measures or targets, times rows
    assert all(number.num_seeds for number in numbers)
