"""Calibration: logits rescaled on held-out data so that probabilities match accuracy.

Calibrated probabilities hold for the class distribution of the held-out data.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift import checks
from tailshift.compensation import Array
from tailshift.registry import Registry

Floats = NDArray[np.float64]

SCALE_RIDGE = 0.01  # on log T: separable data would otherwise send T to 0
LOWEST = -100.0  # below a row's largest logit; what is lower is as good as impossible
FIT_BLOCK_ELEMENTS = 2**17  # 1 MB of float64: a block stays in the processor's cache
FIT_KEPT_ELEMENTS = 2**25  # up to 256 MB of log probabilities are kept while fitting


class ConvergenceWarning(UserWarning):
    """An iteration stopped before it had settled."""


class Calibrator(Protocol):
    """Anything that can be fitted to logits and labels, and maps logits to logits."""

    def fit(self, logits: checks.ArrayLike, labels: checks.ArrayLike) -> Any:
        """Learn from held-out data."""

    def transform(self, logits: Any) -> Any:
        """Return calibrated logits of the same kind."""


class Scaling(ABC):
    r"""Logits :math:`e^{a} f + b` fitted by penalised maximum likelihood.

    Args:
        ridge: Weight of the penalty on what a class has for itself, in units of one
            sample's log-likelihood; it fades as samples come in.
    """

    scale_: Tensor
    bias_: Tensor
    scale_ridge = SCALE_RIDGE

    def __init__(self, *, ridge: float = 1.0) -> None:
        if not ridge >= 0:
            raise ValueError(f"`ridge` must not be negative, but is {ridge:g}.")
        self.ridge = ridge

    def fit(self, logits: checks.ArrayLike, labels: checks.ArrayLike) -> Self:
        """Fit to held-out logits (N, C) and labels (N,), neither of which changes."""
        f = checks.check_logits(checks.as_tensor(logits, "logits").cpu())
        y = checks.check_sample_labels(checks.as_tensor(labels, "labels").cpu(), f)
        return self.fit_shifted(f, y, torch.zeros(f.shape[1], dtype=torch.float64))

    def fit_shifted(self, f: Tensor, y: Tensor, shift: Tensor) -> Self:
        """Fit to logits f + shift (N, C), which are never held in memory at once."""
        num_classes = f.shape[1]
        keeps = f.numel() <= FIT_KEPT_ELEMENTS
        kept = list(self._blocks(f, y, shift)) if keeps else None

        def objective(x: Floats) -> tuple[float, Floats]:
            a, b = self._unpack(torch.from_numpy(x), num_classes)
            blocks = self._blocks(f, y, shift) if kept is None else kept
            loss, grad_a, grad_b = _nll_and_gradient(blocks, a, b)
            penalty, grad_x = self._penalty(x)
            total = grad_x + self._pack(grad_a, grad_b).numpy()
            return (loss + penalty) / len(y), total / len(y)

        x = _minimise(objective, np.zeros(self._num_parameters(num_classes)))
        a, b = self._unpack(torch.from_numpy(x), num_classes)
        self.scale_, self.bias_ = a.exp(), b - b.mean()
        return self

    @overload
    def transform(self, logits: Tensor) -> Tensor: ...
    @overload
    def transform(self, logits: NDArray[Array]) -> NDArray[Array]: ...
    def transform(self, logits: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
        """Return calibrated logits (N, C), of the input's kind, device and dtype."""
        if not hasattr(self, "scale_"):
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. "
                "Call fit(logits, labels) with held-out data first."
            )
        f = checks.check_logits(logits)
        if f.shape[1] != len(self.bias_):
            raise ValueError(
                f"`logits` has {f.shape[1]} classes, "
                f"but the calibrator was fitted on {len(self.bias_)}."
            )
        dtype = torch.promote_types(f.dtype, torch.float32)
        scale, bias = (v.to(f.device, dtype) for v in (self.scale_, self.bias_))
        g = (self._prepare(f.to(dtype)) * scale + bias).to(f.dtype)
        return g.numpy() if isinstance(logits, np.ndarray) else g

    def _blocks(
        self, f: Tensor, y: Tensor, shift: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is scaled, in float64, and labels, block by block."""
        rows = max(1, FIT_BLOCK_ELEMENTS // f.shape[1])
        for start in range(0, len(f), rows):
            part = f[start : start + rows] + shift
            part -= part.amax(dim=1, keepdim=True)
            yield self._prepare(part.clamp_min_(LOWEST)), y[start : start + rows]

    def _prepare(self, f: Tensor) -> Tensor:
        return f

    @abstractmethod
    def _num_parameters(self, num_classes: int) -> int: ...

    @abstractmethod
    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return log scales and biases, both (C,)."""

    @abstractmethod
    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        """Return the gradient in the parameters from that in scales and biases."""

    @abstractmethod
    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        """Return the penalty and its gradient."""


CALIBRATORS: Registry[type[Scaling]] = Registry("calibrator", Scaling)


@CALIBRATORS.register("identity")
class IdentityScaling(Scaling):
    """Leave logits as they are: for a model that is calibrated already.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> IdentityScaling().fit(logits, torch.tensor([0])).transform(logits)
        tensor([[2., 0.]])
    """

    def __init__(self) -> None:
        super().__init__(ridge=0.0)

    def fit_shifted(self, f: Tensor, y: Tensor, shift: Tensor) -> Self:
        """Fit nothing."""
        self.scale_ = torch.ones(f.shape[1], dtype=torch.float64)
        self.bias_ = torch.zeros(f.shape[1], dtype=torch.float64)
        return self

    def _num_parameters(self, num_classes: int) -> int:
        return 0

    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(num_classes, dtype=torch.float64)
        return zeros, zeros

    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        return grad_a[:0]

    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        return 0.0, x


@CALIBRATORS.register("temperature")
class TemperatureScaling(Scaling):
    r"""Divide logits by one temperature, :math:`f / T` [guo2017].

    Attributes:
        temperature_: :math:`T`; above 1 the model was too sure of itself.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaling = TemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> scaling.transform(logits[:1]).softmax(-1)  # three in four are right
        tensor([[0.7529, 0.2471]])
    """

    def __init__(self) -> None:
        super().__init__(ridge=0.0)

    @property
    def temperature_(self) -> float:
        """The temperature T."""
        return 1 / self.scale_[0].item()

    def _num_parameters(self, num_classes: int) -> int:
        return 1

    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        return x.expand(num_classes), torch.zeros(num_classes, dtype=torch.float64)

    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        return grad_a.sum().reshape(1)

    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        return self.scale_ridge * float(x @ x) / 2, self.scale_ridge * x


@CALIBRATORS.register("bcts")
class BiasCorrectedTemperatureScaling(Scaling):
    r"""Temperature and a bias per class, :math:`f / T + b_c` (BCTS) [alexandari2020].

    The biases make the mean probability of each class that of the held-out labels,
    which estimating a prior by likelihood needs.

    Args:
        ridge: Weight of :math:`\tfrac12 \sum_c b_c^2` in units of one sample's
            log-likelihood: a class with few samples keeps its bias near 0.

    Attributes:
        temperature_: :math:`T`.
        bias_: :math:`b`, shape (C,), of mean 0.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        >>> bcts = BiasCorrectedTemperatureScaling(ridge=0.01)
        >>> bcts = bcts.fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> bcts.transform(logits[1:2]).softmax(-1)  # two in three are of class 0
        tensor([[0.6650, 0.3350]])
    """

    @property
    def temperature_(self) -> float:
        """The temperature T."""
        return 1 / self.scale_[0].item()

    def _num_parameters(self, num_classes: int) -> int:
        return 1 + num_classes

    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        return x[:1].expand(num_classes), x[1:]

    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        return torch.cat([grad_a.sum().reshape(1), grad_b])

    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        weight = np.full_like(x, self.ridge)
        weight[0] = self.scale_ridge
        return float(weight @ x**2) / 2, weight * x


@CALIBRATORS.register("vector")
class VectorScaling(Scaling):
    r"""A scale and a bias per class, :math:`e^{a_c} \log p_c + b_c` [guo2017].

    It works on log probabilities, so that a constant added to a row changes nothing,
    and keeps every scale positive.

    Args:
        ridge: Weight of :math:`\tfrac12 \sum_c (a_c - \bar a)^2 + b_c^2`.

    Attributes:
        scale_: :math:`e^{a}`, shape (C,).
        bias_: :math:`b`, shape (C,), of mean 0.
    """

    def _prepare(self, f: Tensor) -> Tensor:
        return f.log_softmax(dim=1)

    def _num_parameters(self, num_classes: int) -> int:
        return 2 * num_classes

    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        return x[:num_classes], x[num_classes:]

    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        return torch.cat([grad_a, grad_b])

    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        a, b = np.split(x, 2)
        mean, own = a.mean(), a - a.mean()
        value = self.ridge * (own @ own + b @ b) + self.scale_ridge * mean**2
        shared = np.full_like(a, self.scale_ridge * mean / len(a))
        return float(value) / 2, np.concatenate(
            [self.ridge * own + shared, self.ridge * b]
        )


_SELECTION_FOLDS, FEW_FOLDS = 5, 3
_MANY_ELEMENTS = 2**18  # of logits, from which fewer folds are taken
_CANDIDATES: tuple[tuple[str, float], ...] = (
    ("identity", 0.0),
    ("temperature", 0.0),
    ("bcts", 10.0),
    ("bcts", 1.0),
    ("vector", 30.0),
    ("vector", 10.0),
    ("vector", 1.0),
)
"""Calibrators and ridges that :class:`AutoScaling` chooses from, the simplest first."""
_SELECTION_ELEMENTS = 2**19  # logits that the choice is made on, at most
SELECTION_SCALE_RIDGE = 1.0  # few labels are often separable
_SELECTION_TOLERANCE = 0.5  # standard errors that the choice may be worse than the best


@CALIBRATORS.register("auto")
class AutoScaling(Scaling):
    """Choose the calibrator by cross-validation, and fit it to all samples.

    Use this when you do not know how a model is miscalibrated. The candidates are
    identity, temperature, BCTS and vector scaling, the last two with several ridges,
    so few labels per class get few parameters. The simplest candidate whose held-out
    log-likelihood is within half a standard error of the best one is chosen.

    Attributes:
        chosen_: Name and ridge of the chosen calibrator.
        nll_: Cross-validated negative log-likelihood of each candidate.

    Example:
        >>> logits = torch.randn(2000, 3)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> AutoScaling().fit(9 * logits, labels).chosen_[0] != "identity"
        True
    """

    def __init__(self) -> None:
        super().__init__(ridge=0.0)

    def fit_shifted(self, f: Tensor, y: Tensor, shift: Tensor) -> Self:
        """Choose a calibrator, and fit it to logits f + shift (N, C)."""
        losses = _cross_validated_losses(f, y, shift)  # (candidates, n)
        means = losses.mean(dim=1)
        best = losses[means.argmin()]
        errors = (losses - best).std(dim=1) / len(best) ** 0.5
        is_near = means - best.mean() <= _SELECTION_TOLERANCE * errors
        first = int(is_near.nonzero()[0])
        self.chosen_ = _CANDIDATES[first]
        self.nll_ = dict(zip(_CANDIDATES, means.tolist(), strict=True))
        self._scaling = _make_candidate(*self.chosen_).fit_shifted(f, y, shift)
        self.scale_, self.bias_ = self._scaling.scale_, self._scaling.bias_
        self.ridge = self._scaling.ridge
        return self

    def _prepare(self, f: Tensor) -> Tensor:
        return self._scaling._prepare(f)

    def _num_parameters(self, num_classes: int) -> int:
        return self._scaling._num_parameters(num_classes)

    def _unpack(self, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        return self._scaling._unpack(x, num_classes)

    def _pack(self, grad_a: Tensor, grad_b: Tensor) -> Tensor:
        return self._scaling._pack(grad_a, grad_b)

    def _penalty(self, x: Floats) -> tuple[float, Floats]:
        return self._scaling._penalty(x)


def _make_candidate(name: str, ridge: float) -> Scaling:
    kind = CALIBRATORS.get(name)
    made = kind(ridge=ridge) if ridge else kind()
    made.scale_ridge = SELECTION_SCALE_RIDGE
    return made


def _cross_validated_losses(f: Tensor, y: Tensor, shift: Tensor) -> Tensor:
    """Return the NLL of each sample by fits without it, (candidates, n)."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=generator)
    order = order[: max(2 * _SELECTION_FOLDS, _SELECTION_ELEMENTS // f.shape[1])]
    f, y = f[order], y[order]
    num_folds = (
        FEW_FOLDS if f.numel() > _MANY_ELEMENTS else min(_SELECTION_FOLDS, len(y))
    )
    if num_folds < 2:
        return torch.zeros(len(_CANDIDATES), 2, dtype=torch.float64)
    fold = torch.arange(len(y)) % num_folds
    losses = torch.zeros(len(_CANDIDATES), len(y), dtype=torch.float64)
    for row, candidate in zip(losses, _CANDIDATES, strict=True):
        for k in range(num_folds):
            kept, out = fold != k, fold == k
            fitted = _make_candidate(*candidate).fit_shifted(f[kept], y[kept], shift)
            log_p = fitted.transform(f[out] + shift).log_softmax(dim=1)
            row[out] = -log_p.gather(1, y[out, None])[:, 0].clamp_min(LOWEST)
    return losses


def _nll_and_gradient(
    blocks: Iterable[tuple[Tensor, Tensor]], a: Tensor, b: Tensor
) -> tuple[float, Tensor, Tensor]:
    """Return the summed NLL of softmax(e^a · x + b) and its gradients in a and b.

    A block is read few times, and its exponentials are taken once: this is what fitting
    takes its time for.
    """
    scale = a.exp()
    loss, grad_a, grad_b = 0.0, torch.zeros_like(b), torch.zeros_like(b)
    for x, labels in blocks:
        z = torch.addcmul(b, x, scale)  # (rows, C)
        z -= z.amax(dim=1, keepdim=True)
        own = labels[:, None]
        own_z, own_x = z.gather(1, own)[:, 0], x.gather(1, own)[:, 0]
        weights = z.exp_()
        total = weights.sum(dim=1)
        loss += (total.log() - own_z).sum().item()
        share = total.reciprocal()
        grad_b += share @ weights
        grad_b.index_add_(0, labels, torch.ones_like(own_x), alpha=-1)
        grad_a += share @ weights.mul_(x)
        grad_a.index_add_(0, labels, own_x, alpha=-1)
    return loss, scale * grad_a, grad_b


def _minimise(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats
) -> Floats:
    from scipy.optimize import minimize  # slow to import, and only fits need it

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-8}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    if not found.success and np.abs(found.jac).max() > 1e-5:
        warnings.warn(
            f"calibration has not converged after {found.nit} iterations; "
            f"its largest gradient is {np.abs(found.jac).max():.1e}.",
            ConvergenceWarning,
            stacklevel=3,
        )
    x: Floats = found.x
    return x
