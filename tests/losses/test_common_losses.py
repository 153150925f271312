"""What every loss must do; a new loss joins by one line in ``LOSSES``."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import (
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    LADELoss,
    balanced_softmax_loss,
    cross_entropy_loss,
    lade_loss,
)

NUM_CLASSES = 6
P_S = priors.from_counts([400, 150, 60, 20, 8, 3])


@dataclass(frozen=True)
class Case:
    """A loss as a function of logits and labels, and its module."""

    name: str
    function: Callable[..., Tensor]
    module: Callable[..., nn.Module]
    reduces: bool = True


def _lade(mode: str) -> Case:
    settings = {"alpha": 0.1, "lam": 0.1, "mode": mode}
    return Case(
        f"lade_{mode}",
        lambda f, y: lade_loss(f, y, P_S.to(f.device), **settings),
        lambda: LADELoss(P_S, **settings),
        reduces=False,
    )


LOSSES = [
    Case("cross_entropy", cross_entropy_loss, CrossEntropyLoss),
    Case(
        "balanced_softmax",
        lambda f, y, **kw: balanced_softmax_loss(f, y, P_S.to(f.device), **kw),
        lambda **kw: BalancedSoftmaxLoss(P_S, **kw),
    ),
    _lade("paper"),
    _lade("self_normalised"),
    _lade("official"),
]
every_loss = pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.name)
reducing_loss = pytest.mark.parametrize(
    "case", [case for case in LOSSES if case.reduces], ids=lambda case: case.name
)
every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def _batch(
    labels: list[int], dtype=torch.float32, device="cpu"
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(len(labels))
    logits = torch.randn(len(labels), NUM_CLASSES, generator=g)
    return (
        logits.to(device, dtype).requires_grad_(),
        torch.tensor(labels, device=device),
    )


@every_loss
@every_device
@pytest.mark.parametrize(
    "labels",
    [[0, 0, 1, 2, 3, 4, 5], [0, 0, 0, 2], [5], [5, 5, 5]],
    ids=["all classes", "absent classes", "one sample", "one class"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_losses__value_and_gradient_are_finite(case, labels, dtype, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    logits, y = _batch(labels, dtype, device)
    loss = case.function(logits, y)
    loss.backward()
    assert loss.isfinite()
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert loss.device == logits.device
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()
    assert (logits.grad != 0).any()


@every_loss
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_losses__huge_logits_are_finite(case, scale):
    _, y = _batch([0, 0, 1, 5])
    logits = torch.full((4, NUM_CLASSES), scale)
    logits[:, ::2] *= -1
    loss = case.function(logits.requires_grad_(), y)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@every_loss
def test_losses__gradient_is_exact(case):
    logits, y = _batch([0, 0, 1, 5], torch.float64)
    assert torch.autograd.gradcheck(lambda f: case.function(f, y), logits)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_losses__function_equals_module(case, dtype):
    logits, y = _batch([0, 0, 1, 2, 5], dtype)
    assert case.function(logits, y) == case.module()(logits, y)


@every_loss
@pytest.mark.parametrize("num_samples", [2, 9], ids=["picked classes", "all classes"])
def test_losses__forward_and_backward_read_no_value(case, num_samples):
    """On the meta device there is nothing to read: a synchronisation would raise."""
    logits = torch.empty(num_samples, NUM_CLASSES, device="meta", requires_grad=True)
    labels = torch.empty(num_samples, dtype=torch.int64, device="meta")
    for loss in (case.function, case.module().to("meta")):
        logits.grad = None
        loss(logits, labels).backward()
        assert logits.grad.shape == logits.shape


@every_loss
def test_losses__compile_without_a_graph_break(case):
    logits, y = _batch([0, 0, 1, 5])
    module = case.module()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, y), module(logits, y))


@every_loss
def test_losses__take_narrow_integer_labels(case):
    logits, y = _batch([0, 1, 5])
    assert case.function(logits, y.to(torch.uint8)) == case.function(logits, y)


@every_loss
def test_losses__refuse_an_empty_batch(case):
    empty = torch.empty(0, NUM_CLASSES), torch.empty(0, dtype=torch.int64)
    for loss in (case.function, case.module()):
        with pytest.raises(ValueError, match=r"^`") as error:
            loss(*empty)
        assert str(error.value) == (
            "`logits` must hold at least one sample and one class, "
            "but has shape (0, 6). Skip an empty batch."
        )


@reducing_loss
def test_losses__reductions_agree(case):
    logits, y = _batch([0, 0, 1, 2, 5], torch.float64)
    each = case.function(logits, y, reduction="none")
    assert each.shape == y.shape
    torch.testing.assert_close(case.function(logits, y, reduction="sum"), each.sum())
    torch.testing.assert_close(case.function(logits, y), each.mean())
    torch.testing.assert_close(case.module(reduction="none")(logits, y), each)


@reducing_loss
def test_losses__refuse_an_unknown_reduction(case):
    sentence = "`reduction` must be 'mean', 'sum' or 'none', but is 'batchmean'."
    with pytest.raises(ValueError, match=r"^`") as error:
        case.function(*_batch([0]), reduction="batchmean")
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        case.module(reduction="batchmean")
    assert str(error.value) == sentence
