"""Export: a run as one ONNX file or torch.export program, pixels in, answers out."""

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailshift.compensation import log_prior_ratio
from tailshift.data.memory import Normalisation
from tailshift.files import atomic_write
from tailshift.priors import VectorLike, as_prior, from_counts, uniform
from tailshift.runs.run import Run, as_run
from tailshift.serving.images import PathLike, preparation_of
from tailshift.storage import json_text
from tailshift.target_names import SOURCE
from tailshift.targets import Target

BATCH_SIZES = (1, 2, 7)
TOLERANCE = 1e-4
OPSET = 18
CDIST = torch.ops.aten._cdist_forward.default  # which the exporter does not know


class ServedModel(nn.Module):
    """Pixels in, probabilities out: normalisation, network and compensation in one.

    Args:
        run: Gives the network, the pixels' mean and deviation, and the trained prior.
        target_prior: The prior to answer for, shape (C,); None takes it as a second
            input.
    """

    log_ratio: Tensor

    def __init__(self, run: Run, target_prior: VectorLike | None) -> None:
        super().__init__()
        self.model = run.model
        self.normalise = Normalisation(run.facts.mean, run.facts.std)
        p = run.logit_prior
        if target_prior is None:
            ratio = -as_prior(p, name="logit_prior", positive=True).log()
        else:
            ratio = log_prior_ratio(p, target_prior, num_classes=len(p))
        self.register_buffer("log_ratio", ratio.float())

    def forward(
        self, images: Tensor, target_prior: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities under the target prior, both (N, C).

        Args:
            images: uint8 pixels, shape (N, channels, H, W).
            target_prior: Shares or counts, if none is built in, float32, (C,).
        """
        ratio = self.log_ratio
        if target_prior is not None:
            ratio = ratio + (target_prior / target_prior.sum()).log()
        f = self.model(self.normalise(images)) + ratio
        return f, f.softmax(dim=1)


@dataclass(frozen=True, eq=False)
class _Example:
    """Inputs to trace with, and to compare by."""

    run: Run
    target_prior: Tensor | None

    def inputs(self, batch_size: int, prior: Tensor) -> dict[str, Tensor]:
        facts = self.run.facts
        shape = (batch_size, facts.in_channels, *[facts.image_size] * 2)
        generator = torch.Generator().manual_seed(batch_size)
        images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        named = {"images": images}
        return (
            named
            if self.target_prior is not None
            else named | {"target_prior": prior.float()}
        )

    def priors(self) -> list[Tensor]:
        """Return the priors to compare by: the one built in, or several."""
        if self.target_prior is not None:
            return [self.target_prior]
        p_s = self.run.source_prior
        without_first = torch.ones_like(p_s)
        without_first[0] = 0
        return [p_s, p_s.flip(0), uniform(len(p_s)), from_counts(without_first)]


def metadata(run: Run, target_prior: Tensor | None) -> dict[str, str]:
    """Return what a server needs to know besides the graph, each value as JSON."""
    facts = run.facts
    entries: dict[str, Any] = {
        "class_names": list(run.class_names),
        "source_prior": run.source_prior.tolist(),
        "logit_prior": run.logit_prior.tolist(),
        "target_prior": None if target_prior is None else target_prior.tolist(),
        "image_size": facts.image_size,
        "resized": preparation_of(run).resized,
        "fit": preparation_of(run).fit,
        "in_channels": facts.in_channels,
        "mean": facts.mean,
        "std": facts.std,
        "recipe": run.config.recipe,
        "method": run.config.method_name,
        "tailshift_version": version("tailshift"),
    }
    return {key: json_text(value) for key, value in entries.items()}


def export_onnx(
    run: Run, path: str | Path, *, target_prior: Target | None = None
) -> float:
    """Write a run as an ONNX file, after comparing it with PyTorch.

    Its inputs are ``images``, uint8 pixels of shape (N, channels, H, W) with any N, and
    without a built-in prior ``target_prior``, shares or counts as float32 of shape
    (C,). Its outputs are ``logits`` and ``probs``, both (N, C). Class names, priors and
    the size of images stand in its metadata, each as JSON. A server resizes an image's
    shorter side to ``resized`` and cuts ``image_size`` out of the middle or, if ``fit``
    is "whole", resizes all of it to a square of ``image_size``.

    Args:
        run: A finished run.
        path: File to write; replaced if it exists.
        target_prior: :math:`p_t` to build in: a vector (C,), a name (``"uniform"`` …)
            or a file; None makes it the second input.

    Returns:
        The largest difference in a probability that was seen.

    Raises:
        ImportError: If the packages of the extra ``export`` are not there.
        ValueError: If the network cannot be written, or answers otherwise than
            PyTorch does.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _needed(name)
    preparation_of(run)  # refuses a run that reads no images
    example = _example(run, target_prior)
    served = ServedModel(run, example.target_prior).eval()
    inputs = example.inputs(2, example.priors()[0])
    with _refusing(run):
        program = _translate(served, inputs)
    program.model.metadata_props.update(metadata(run, example.target_prior))
    with atomic_write(Path(path)) as temporary:
        program.save(temporary)
        return _compare(example, _onnx_answers(temporary))


def export(
    run: Run | PathLike,
    output: PathLike,
    *,
    target: Target | None = None,
    target_input: bool = False,
    program: bool = False,
) -> dict[Path, float]:
    """Write a run as an ONNX file, as ``tailshift export`` does.

    Args:
        run: A finished run, or its directory.
        output: An ``.onnx`` file; it is replaced.
        target: The class distribution to build in: a prior, a name (``"uniform"``,
            ``"backward:10"`` …) or a file; by default that of the training data.
        target_input: Whether to make the class distribution a second input instead.
        program: Whether to write a ``torch.export`` program (``.pt2``) beside it.

    Returns:
        The files written, each with the largest difference in a probability from
        PyTorch's.
    """
    if target is not None and target_input:
        raise ValueError(
            "`target` fixes a target prior and `target_input` leaves it open: "
            "give one of them."
        )
    files = export_files(output, program=program)
    run = as_run(run)
    prior = None if target_input else (SOURCE if target is None else target)
    writers = (export_onnx, export_program)
    return {
        path: write(run, path, target_prior=prior)
        for path, write in zip(files, writers, strict=False)
    }


def export_files(output: PathLike, *, program: bool) -> list[Path]:
    """Return the files that :func:`export` writes."""
    path = Path(output)
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"`output` must end in .onnx, but is {path}.")
    return [path, path.with_suffix(".pt2")] if program else [path]


def _translate(served: ServedModel, inputs: dict[str, Tensor]) -> Any:
    """Return the ONNX program."""
    with _quiet():
        return torch.onnx.export(
            served,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=["logits", "probs"],
            dynamic_shapes=_dynamic_shapes(inputs),
            opset_version=OPSET,
            custom_translation_table={CDIST: _cdist},
            dynamo=True,
            verbose=False,
        )


@contextmanager
def _refusing(run: Run) -> Iterator[None]:
    """Say in one sentence what PyTorch says on pages: it cannot be written."""
    try:
        yield
    except RuntimeError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(
            f"the network of {run.directory} ({run.config.method_name}) cannot be "
            f"exported: {cause.rstrip('.')}."
        ) from error


def _cdist(x: Any, y: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Distances (N, M) of rows (N, d) and (M, d), which ONNX has no name for."""
    assert p == 2.0
    op = import_module("onnxscript").opset18
    return op.ReduceL2(
        op.Sub(op.Unsqueeze(x, [-2]), op.Unsqueeze(y, [-3])), [-1], keepdims=0
    )


def export_program(
    run: Run, path: str | Path, *, target_prior: Target | None = None
) -> float:
    """Write a run as a torch.export program (``.pt2``), after comparing it.

    Inputs, outputs and metadata are those of :func:`export_onnx`; the metadata are
    extra files of the archive. Read it with ``torch.export.load``.
    """
    preparation_of(run)  # refuses a run that reads no images
    example = _example(run, target_prior)
    served = ServedModel(run, example.target_prior).eval()
    inputs = example.inputs(2, example.priors()[0])
    with _refusing(run):
        program = torch.export.export(
            served, (), kwargs=inputs, dynamic_shapes=_dynamic_shapes(inputs)
        )
    written = io.BytesIO()
    torch.export.save(program, written, extra_files=metadata(run, example.target_prior))
    with atomic_write(Path(path)) as temporary:
        temporary.write_bytes(written.getvalue())
        loaded = torch.export.load(io.BytesIO(temporary.read_bytes())).module()

        def answers(inputs: dict[str, Tensor]) -> list[Tensor]:
            return list(loaded(**inputs))

        return _compare(example, answers)


def _example(run: Run, target_prior: Target | None) -> _Example:
    return _Example(
        run, None if target_prior is None else run.target_prior(target_prior)
    )


def _dynamic_shapes(inputs: dict[str, Tensor]) -> dict[str, Any]:
    shapes: dict[str, Any] = dict.fromkeys(inputs)
    return shapes | {"images": {0: torch.export.Dim("batch", min=1)}}


def _compare(example: _Example, answers: Any) -> float:
    """Return the largest difference in probabilities from PyTorch's; refuse a large."""
    run, largest = example.run, 0.0
    normalise = Normalisation(run.facts.mean, run.facts.std)
    for prior in example.priors():
        reference = run.retarget(prior)
        for batch_size in BATCH_SIZES:
            inputs = example.inputs(batch_size, prior)
            with torch.no_grad():
                expected = reference(normalise(inputs["images"]))
            logits, probs = answers(inputs)
            gaps = {
                "probabilities": relative_gap(probs, expected.softmax(dim=1)),
                "logits": relative_gap(logits, expected),
            }
            largest = max(largest, gaps["probabilities"])
            for what, gap in gaps.items():
                if not gap <= TOLERANCE:
                    raise ValueError(
                        f"the exported model's {what} differ from PyTorch's by "
                        f"{gap:.1e} for {batch_size} images, more than {TOLERANCE:g}; "
                        "nothing was written."
                    )
    return largest


def relative_gap(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest value if above 1.

    Each logit is a sum whose terms are about as large as the largest logit, and so are
    its rounding errors.

    Args:
        found: Any shape; −inf agrees with −inf alone.
        expected: Of the same shape.

    Example:
        >>> gap = relative_gap(torch.tensor([80.0, 0.008]), torch.tensor([80.0, 0.0]))
        >>> round(gap, 6)
        0.0001
    """
    gap = torch.where(found == expected, 0.0, (found - expected).abs())
    scale = expected[expected.isfinite()].abs().max().clamp_min(1)
    return (gap.max() / scale).item()


def _onnx_answers(path: Path) -> Any:
    runtime = _needed("onnxruntime")
    session = runtime.InferenceSession(
        path.read_bytes(), providers=["CPUExecutionProvider"]
    )

    def answers(inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        arrays = {name: value.numpy() for name, value in inputs.items()}
        return [torch.from_numpy(a) for a in session.run(["logits", "probs"], arrays)]

    return answers


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"ONNX files need the package {module}, which is not installed. Install "
            "it with `pip install tailshift[export]`."
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes on its own workings from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# Until version 1, `tailshift.export` was this module; its two functions stay reachable.
export.export_onnx = export_onnx  # type: ignore[attr-defined] # a function's attribute
export.export_program = export_program  # type: ignore[attr-defined] # likewise
