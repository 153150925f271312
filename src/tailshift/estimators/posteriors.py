"""Calibrated posteriors of many samples, block by block, and what they are worth."""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits

Logits: TypeAlias = ArrayLike | Iterable[ArrayLike]
"""Logits (N, C) at once, or an iterable of such chunks, which is read once."""

BLOCK_ELEMENTS = 2**19  # 4 MB of float64: a block stays in the processor's cache
EXACT_ELEMENTS = 2**23  # up to 64 MB are kept in float64
SUMMED_ELEMENTS = 2**23  # posteriors that information is summed over, at most
KEPT_ELEMENTS = 2**27  # up to 512 MB are kept in float32; more is made anew or on disk


class Posteriors:
    """Posteriors of N samples over C classes as blocks of rows.

    Few samples are kept in float64 and more in float32. Beyond ``KEPT_ELEMENTS``, those
    of an array (it may be memory-mapped) are computed anew in each pass, and those of
    an iterable are kept in a temporary file: memory stays bounded.

    Attributes:
        num_samples: N.
        num_classes: C.
    """

    def __init__(
        self, logits: Logits, posterior: Callable[[Tensor], Tensor], num_classes: int
    ) -> None:
        self.num_classes = num_classes
        self._posterior = posterior
        self._dtype = torch.float64
        self._blocks: list[Tensor] | None = None
        self._source: ArrayLike | None = None
        if isinstance(logits, Tensor | np.ndarray):
            self._take_array(logits)
        else:
            self._take_iterable(logits)

    @classmethod
    def of(cls, posteriors: Tensor) -> "Posteriors":
        """Return posteriors (N, C) that are there already, as blocks of their dtype."""
        made = cls.__new__(cls)
        made.num_samples, made.num_classes = posteriors.shape
        made._dtype, made._posterior = posteriors.dtype, lambda p: p
        made._source, made._blocks = posteriors, None  # blocks are views of it
        return made

    def __iter__(self) -> Iterator[Tensor]:
        """Yield blocks of posteriors, float64 by default, shape (rows, C)."""
        for block in self._kept():
            yield block.to(self._dtype)

    def passing(self) -> Iterator[Tensor]:
        """Yield the same blocks, each valid until the next: one buffer serves them all.

        New memory for each block would cost more than what is done with it.
        """
        buffer: Tensor | None = None
        for block in self._kept():
            if block.dtype == self._dtype:
                yield block
                continue
            if buffer is None:
                buffer = torch.empty_like(block, dtype=self._dtype)
            yield buffer[: len(block)].copy_(block)

    def mean(self, weights: Tensor | None = None) -> Tensor:
        """Return the mean posterior (C,), or weighted ones (C, B) for (N, B)."""
        sums = torch.zeros(self.num_classes, dtype=torch.float64)
        if weights is not None:
            sums = sums[:, None].repeat(1, weights.shape[1])
        start = 0
        for p in self.passing():
            part = None if weights is None else weights[start : start + len(p)].double()
            sums += p.sum(dim=0) if part is None else p.T @ part
            start += len(p)
        total = self.num_samples if weights is None else weights.sum(dim=0)
        return sums / total

    def rows(self, indices: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the posteriors of some samples, in ascending order, (n, C)."""
        wanted = indices.sort().values
        shape = len(wanted), self.num_classes
        found = torch.empty(shape, dtype=dtype or self._dtype)
        start = 0
        for p in self.passing():
            inside = (wanted >= start) & (wanted < start + len(p))
            found[inside] = p[wanted[inside] - start].to(found.dtype)
            start += len(p)
        return found

    def _take_array(self, logits: ArrayLike) -> None:
        if logits.ndim != 2 or 0 in logits.shape:
            check_logits(logits)  # it says what is wrong
        self.num_samples = len(logits)
        self._source = logits
        size = self.num_samples * self.num_classes
        if size <= KEPT_ELEMENTS:
            dtype = torch.float64 if size <= EXACT_ELEMENTS else torch.float32
            self._blocks = [p.to(dtype) for p in self._made()]
            self._source = None

    def _kept(self) -> Iterable[Tensor]:
        """Return the blocks in the dtype that they are kept in."""
        return self._made() if self._blocks is None else self._blocks

    def _made(self) -> Iterator[Tensor]:
        assert self._source is not None
        rows = max(1, BLOCK_ELEMENTS // self.num_classes)
        for start in range(0, self.num_samples, rows):
            yield self._posterior(
                as_tensor(self._source[start : start + rows], "logits")
            )

    def _take_iterable(self, chunks: Iterable[ArrayLike]) -> None:
        self._blocks, self.num_samples = [], 0
        for block in self._made_from(chunks):
            self.num_samples += len(block)
            size = self.num_samples * self.num_classes
            if size <= EXACT_ELEMENTS:
                self._blocks.append(block)
            elif size <= KEPT_ELEMENTS:
                self._blocks.append(block.float())
            else:
                self._blocks.append(self._on_disk(block.float().numpy()))
        if self.num_samples == 0:
            raise ValueError("`logits` must not be empty: there is no sample.")

    def _made_from(self, chunks: Iterable[ArrayLike]) -> Iterator[Tensor]:
        rows = max(1, BLOCK_ELEMENTS // self.num_classes)
        for chunk in _check_iterable(chunks):
            f = as_tensor(chunk, "logits")
            for start in range(0, max(1, len(f)), rows):
                yield self._posterior(f[start : start + rows])

    def _on_disk(self, block: NDArray[np.float32]) -> Tensor:
        if not hasattr(self, "_file"):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with self)
            weakref.finalize(self, self._file.close)
        offset = self._file.seek(0, 2)
        self._file.write(block.tobytes())
        self._file.flush()
        mapped = np.memmap(self._file, np.float32, "r+", offset, block.shape)
        return torch.from_numpy(mapped)


def _check_iterable(chunks: Any) -> Iterable[ArrayLike]:
    if isinstance(chunks, Iterable) and not isinstance(chunks, str | bytes | list):
        return chunks
    if isinstance(chunks, list) and all(
        isinstance(chunk, Tensor | np.ndarray) for chunk in chunks
    ):
        return chunks
    raise TypeError(
        "`logits` must be a torch tensor, a NumPy array or an iterable of such chunks, "
        f"but is {type(chunks).__name__}."
    )


def effective_samples(
    posteriors: Tensor, target_prior: Tensor, denominator: Tensor, weights: Tensor
) -> float:
    r"""Return the number of labels that tell the prior as well as unlabelled samples.

    .. math:: N\, \frac{\mathrm{tr}\,\mathrm{Cov}(r)}{\mathrm{tr}\,\mathrm{Cov}(y)}
              = \sum_i v_i\, \frac{\sum_c r_{ic}^2 - \sum_c q_c^2}{1 - \sum_c q_c^2}

    with responsibilities :math:`r_i \propto q\, p(\cdot|x_i) / m`, that is posteriors
    under the estimate. This is the share of the labels' information about q that the
    likelihood has without them, weighted by q over the directions: all of it if the
    model is always sure, none if its answers never differ. For two classes it is the
    ratio of the Fisher informations.

    It counts what the samples say. Where classes are confused with each other the
    variance can be larger still; and the error of m is left out: it is the same for all
    sites that one model is sent to, and no reason to trust one less than the others.

    Args:
        posteriors: Calibrated, for the source prior, shape (N, C).
        target_prior: q, the estimate, shape (C,).
        denominator: m, their mean on held-out data, positive, shape (C,).
        weights: v, how much each sample counts, shape (N,).

    Returns:
        At least 0, and at most the sum of the weights.

    Example:
        >>> import torch
        >>> q, v = torch.full((2,), 0.5), torch.ones(4)
        >>> sure, blind = torch.eye(2)[[0, 0, 1, 1]], torch.full((4, 2), 0.5)
        >>> [effective_samples(p, q, q, v) for p in (sure, blind)]
        [4.0, 0.0]
    """
    q, v = target_prior, weights
    r = posteriors * (q / denominator)
    r = r / r.sum(dim=1, keepdim=True)
    known = (v * r.square().sum(dim=1)).sum() / v.sum()
    spread = 1 - q.square().sum()
    if spread <= 0:  # one class alone, of which every sample is sure
        return v.sum().item()
    share = (known - q.square().sum()) / spread
    return float(share.clamp(0, 1) * v.sum())
