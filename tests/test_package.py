"""The package as a whole: its public names and its layers."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailshift as ts

SOURCE = Path(ts.__file__).parent

LAYERS = (
    "registry",
    "storage",
    "priors",
    "checks",
    "targets",
    "compensation",
    "predictions",
    "processes",
    "losses",
    "metrics",
    "calibration",
    "estimators",
    "models",
    "data",
    "methods",
    "config",
    "recipes",
    "runs",
    "training",
    "evaluation",
    "report",
    "serving",
    "sklearn",
    "paper",
    "demo",
    "cli",
)
"""A module imports only from those above it in this list."""

OUTSIDE = ("__init__", "__main__")

PUBLIC = (
    "priors.from_counts",
    "priors.from_labels",
    "priors.uniform",
    "priors.long_tailed_counts",
    "priors.target_counts",
    "post_compensate",
    "PostCompensated",
    "PostCompensated.set_target_prior",
    "PostCompensated.adapt",
    "lader",
    "lade_loss",
    "LADELoss",
    "balanced_softmax_loss",
    "BalancedSoftmaxLoss",
    "logit_adjusted_loss",
    "LogitAdjustedLoss",
    "focal_loss",
    "FocalLoss",
    "class_balanced_focal_loss",
    "ClassBalancedFocalLoss",
    "ldam_loss",
    "LDAMLoss",
    "metrics.accuracy",
    "metrics.group_accuracy",
    "metrics.expected_calibration_error",
    "metrics.classwise_calibration_error",
    "metrics.brier_score",
    "metrics.negative_log_likelihood",
    "Predictions",
    "Predictions.save",
    "Predictions.load",
    "calibration.TemperatureScaling",
    "calibration.BiasCorrectedTemperatureScaling",
    "calibration.VectorScaling",
    "EMEstimator.fit",
    "TiltEstimator.estimate",
    "MAPEstimator.interval_",
    "BBSEEstimator",
    "RLLSEstimator",
    "OnlineEstimator.update",
    "adapt",
    "train",
    "load",
    "Run.model",
    "Run.predictions",
    "Run.retarget",
    "evaluate",
    "report",
    "reproduce",
    "sklearn.PriorShiftClassifier",
    "predict",
    "estimate",
    "export",
    "export.export_onnx",
)


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield each module's layer and path."""
    for path in sorted(SOURCE.rglob("*.py")):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer not in OUTSIDE:
            yield layer, path


def _imported_layers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and layer of each import from this package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, *rest = name.split(".")
            if package == "tailshift" and rest:
                yield node.lineno, rest[0]  # type: ignore[attr-defined] # an import


@pytest.mark.parametrize("name", PUBLIC)
def test_package__has_the_public_name(name: str) -> None:
    value: object = ts
    for part in name.split("."):
        value = getattr(value, part)
    assert value.__doc__
    assert name.split(".")[0] in ts.__all__


def test_package__all_is_true_and_sorted() -> None:
    assert len(set(ts.__all__)) == len(ts.__all__)
    for name in ts.__all__:
        assert hasattr(ts, name), name


def test_package__has_a_version_and_its_types() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", ts.__version__)
    assert (SOURCE / "py.typed").is_file()


def test_layers__every_module_has_a_place() -> None:
    assert {layer for layer, _ in _modules()} <= set(LAYERS)


def test_layers__imports_only_go_up() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports tailshift.{imported}"
        for layer, path in _modules()
        for line, imported in _imported_layers(path)
        if LAYERS.index(imported) > LAYERS.index(layer)
    ]
    assert wrong == []


def test_layers__no_module_for_odds_and_ends() -> None:
    names = {path.stem for _, path in _modules()}
    assert not names & {"utils", "util", "common", "helpers", "helper", "misc"}


def test_modules__open_with_one_line_of_docstring() -> None:
    for _, path in _modules():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring, path
        first, *rest = docstring.split("\n")
        assert first.endswith("."), path
        assert not rest or rest[0] == "", path


def test_import__leaves_heavy_packages_until_they_are_needed() -> None:
    """Each of these takes seconds; `tailshift --help` and the losses need none."""
    top_level = {
        name.split(".")[0]
        for layer, path in _modules()
        if layer != "sklearn"  # who imports it has scikit-learn in use
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        for name in _plain_imports(node)
    }
    assert not top_level & {"lightning_fabric", "timm", "sklearn"}


def _plain_imports(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def test_main_module__is_the_command_line() -> None:
    text = (SOURCE / "__main__.py").read_text(encoding="utf-8")
    assert "from tailshift.cli import main" in text
    assert importlib.import_module("tailshift.cli").main
