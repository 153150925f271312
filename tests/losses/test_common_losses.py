"""What every loss must do; a new loss joins by one line in ``CASES``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import (
    LOSSES,
    BalancedSoftmaxLoss,
    BalPoELoss,
    ClassBalancedCrossEntropyLoss,
    ClassBalancedFocalLoss,
    CrossEntropyLoss,
    FocalLoss,
    LabelAwareSmoothing,
    LADELoss,
    LDAMLoss,
    LogitAdjustedLoss,
    SADELoss,
    WeightedCrossEntropyLoss,
    balanced_softmax_loss,
    balpoe_loss,
    class_balanced_cross_entropy_loss,
    class_balanced_focal_loss,
    cross_entropy_loss,
    focal_loss,
    label_smoothing_factors,
    lade_loss,
    ldam_loss,
    logit_adjusted_loss,
    sade_loss,
    smoothed_loss,
    weighted_cross_entropy_loss,
)
from tailshift.losses.base import as_loss

NUM_CLASSES = 6
COUNTS = torch.tensor([400, 150, 60, 20, 8, 3])
P_S = priors.from_counts(COUNTS)
WEIGHTS = torch.tensor([0.1, 0.3, 0.5, 1.0, 1.5, 2.6])


@dataclass(frozen=True)
class Case:
    """A loss as a function of logits and labels, and its module."""

    name: str
    function: Callable[..., Tensor]
    module: Callable[..., nn.Module]
    reduces: bool = True
    argument: str = "logits"


def _lade(mode: str) -> Case:
    settings = {"alpha": 0.1, "lam": 0.1, "mode": mode}
    return Case(
        f"lade_{mode}",
        lambda f, y: lade_loss(f, y, P_S.to(f.device), **settings),
        lambda: LADELoss(P_S, **settings),
        reduces=False,
    )


def _counted(name: str, function, module, **settings) -> Case:
    """A loss that takes class counts."""
    return Case(
        name,
        lambda f, y, **kw: function(f, y, COUNTS.to(f.device), **settings, **kw),
        lambda **kw: module(COUNTS, **settings, **kw),
        argument="cosines" if module is LDAMLoss else "logits",
    )


def _experts(logits: Tensor) -> Tensor:
    return torch.stack([logits, logits / 2, -logits])


class _SADE(SADELoss):
    """SADE with three experts made of one's logits."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(_experts(logits), labels)

    def class_losses(self, logits: Tensor) -> Tensor:
        return super().class_losses(_experts(logits))


class _BalPoE(BalPoELoss):
    """BalPoE with three experts made of one's logits."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(_experts(logits), labels)

    def class_losses(self, logits: Tensor) -> Tensor:
        return super().class_losses(_experts(logits))


CASES = [
    Case("cross_entropy", cross_entropy_loss, CrossEntropyLoss),
    Case(
        "balanced_softmax",
        lambda f, y, **kw: balanced_softmax_loss(f, y, P_S.to(f.device), **kw),
        lambda **kw: BalancedSoftmaxLoss(P_S, **kw),
    ),
    Case(
        "logit_adjusted",
        lambda f, y, **kw: logit_adjusted_loss(f, y, P_S.to(f.device), tau=0.7, **kw),
        lambda **kw: LogitAdjustedLoss(P_S, tau=0.7, **kw),
    ),
    Case(
        "weighted_cross_entropy",
        lambda f, y, **kw: weighted_cross_entropy_loss(
            f, y, WEIGHTS.to(f.device), **kw
        ),
        lambda **kw: WeightedCrossEntropyLoss(WEIGHTS, **kw),
    ),
    Case("focal", focal_loss, FocalLoss),
    Case(
        "focal_weighted",
        lambda f, y, **kw: focal_loss(
            f, y, gamma=0.5, class_weights=WEIGHTS.to(f.device), **kw
        ),
        lambda **kw: FocalLoss(gamma=0.5, class_weights=WEIGHTS, **kw),
    ),
    _counted(
        "class_balanced_cross_entropy",
        class_balanced_cross_entropy_loss,
        ClassBalancedCrossEntropyLoss,
    ),
    _counted("cb_focal_softmax", class_balanced_focal_loss, ClassBalancedFocalLoss),
    _counted(
        "cb_focal_sigmoid",
        class_balanced_focal_loss,
        ClassBalancedFocalLoss,
        form="sigmoid",
        gamma=0.5,
    ),
    _counted("ldam", ldam_loss, LDAMLoss),
    _counted("ldam_weighted", ldam_loss, LDAMLoss, scale=4.0, class_weights=[1.0] * 6),
    Case(
        "sade",
        lambda f, y, **kw: sade_loss(_experts(f), y, P_S.to(f.device), **kw),
        lambda **kw: _SADE(P_S, **kw),
        argument="expert_logits[0]",
    ),
    Case(
        "balpoe",
        lambda f, y, **kw: balpoe_loss(_experts(f), y, P_S.to(f.device), **kw),
        lambda **kw: _BalPoE(P_S, **kw),
        argument="expert_logits[0]",
    ),
    Case(
        "label_aware_smoothing",
        lambda f, y: smoothed_loss(
            CrossEntropyLoss(), f, y, label_smoothing_factors(COUNTS)
        ),
        lambda: LabelAwareSmoothing(CrossEntropyLoss(), COUNTS),
        reduces=False,
    ),
    _lade("paper"),
    _lade("self_normalised"),
    _lade("official"),
]
every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
reducing_loss = pytest.mark.parametrize(
    "case", [case for case in CASES if case.reduces], ids=lambda case: case.name
)
every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def test_losses__every_registered_one_has_a_case() -> None:
    modules = tuple(case.module() for case in CASES)
    without = [
        name
        for name in LOSSES
        if not any(isinstance(module, LOSSES.get(name)) for module in modules)
    ]
    assert without == ["bilateral"]  # it takes the labels of two batches


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
            f"`{case.argument}` must hold at least one sample and one class, "
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
def test_losses__closed_form_is_the_loss_of_every_label(case):
    """What a module says of all labels at once is what it says of each of them."""
    logits, _ = _batch([0, 0, 1, 2, 5], torch.float64)
    for f in (logits, 30 * logits):
        every = as_loss(case.module()).class_losses(f)  # (N, C)
        each = as_loss(partial(case.function, reduction="none"))
        repeated = each.class_losses(f)
        torch.testing.assert_close(every, repeated, rtol=1e-10, atol=1e-10)


@reducing_loss
def test_losses__closed_form_has_the_gradient_of_every_label(case):
    logits, _ = _batch([0, 0, 1, 2, 5], torch.float64)
    (gradient,) = torch.autograd.grad(
        as_loss(case.module()).class_losses(logits).square().sum(), logits
    )
    repeated = as_loss(partial(case.function, reduction="none")).class_losses(logits)
    (expected,) = torch.autograd.grad(repeated.square().sum(), logits)
    torch.testing.assert_close(gradient, expected)


@every_loss
def test_losses__module_keeps_its_vectors_in_half_precision(case):
    module = case.module().half()
    assert all(b.dtype == torch.float64 for b in module.buffers())
    logits, y = _batch([0, 0, 1, 2, 5])
    assert module(logits, y) == case.module()(logits, y)


@reducing_loss
def test_losses__refuse_an_unknown_reduction(case):
    sentence = "`reduction` must be 'mean', 'sum' or 'none', but is 'batchmean'."
    with pytest.raises(ValueError, match=r"^`") as error:
        case.function(*_batch([0]), reduction="batchmean")
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        case.module(reduction="batchmean")
    assert str(error.value) == sentence
