"""Features and labels of one split, and the batches of them."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.dataset import Split
from tailshift.data.images import Preparation
from tailshift.data.randomness import Stream, hashed_below


@dataclass(frozen=True, eq=False)
class FeatureSplit(Split):
    """Features and labels of one split; training draws one of several views.

    Example:
        >>> split = FeatureSplit(torch.randn(1, 5, 8), torch.arange(5))
        >>> next(split.loader(batch_size=2, training=False).epoch(0)).images.shape
        torch.Size([2, 8])
    """

    features: Tensor
    """Half or single precision, shape (views, N, d); the first view is unaltered."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    mean: tuple[float, ...] = (0.0,)
    """Per channel, of the pixels in [0, 1] that the network saw."""

    std: tuple[float, ...] = (1.0,)
    """Per channel, of those pixels."""

    in_channels: int = 1
    image_size: int = 1
    preparation: Preparation | None = None
    """How image files became what the network saw; None if they were in memory."""

    network: Mapping[str, Any] | None = None
    """The network's section of a configuration; None if nothing says."""

    weights: str = ""
    """16 hex digits that tell which weights the network had."""

    rows: NDArray[np.int64] | None = None
    """Rows of the features that belong to the split; None is all of them."""

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or not self.features.is_floating_point():
            raise ValueError(
                "`features` must be floating point of shape (views, N, d), but is "
                f"{self.features.dtype} of shape {tuple(self.features.shape)}."
            )
        num_rows = self.features.shape[1] if self.rows is None else len(self.rows)
        self._check_labels(num_rows)

    def subset(self, rows: Tensor) -> "FeatureSplit":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""
        own = np.arange(len(self)) if self.rows is None else self.rows
        chosen = own[rows.numpy()]
        return replace(self, labels=self.labels[rows], rows=chosen)

    def take(self, sample_ids: Tensor, views: NDArray[np.int64] | int = 0) -> Tensor:
        """Return features of some samples, float32, shape (B, d).

        Args:
            sample_ids: Positions in the split, shape (B,).
            views: Which view of each.
        """
        ids = sample_ids.numpy()
        rows = ids if self.rows is None else self.rows[ids]
        if isinstance(views, int):
            return self.features[views][torch.from_numpy(rows)].float()
        return self.features[torch.from_numpy(views), torch.from_numpy(rows)].float()

    def chunks(self, size: int, view: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features (B, d) and labels (B,) of all samples, in order.

        Args:
            size: B, the last chunk may be smaller.
            view: Which view.
        """
        for ids in torch.split(torch.arange(len(self)), size):
            yield self.take(ids, view), self.labels[ids]

    def keys(self) -> tuple[str, ...]:
        """Return a checksum of each sample's features, in hex digits."""
        parts = (features for features, _ in self.chunks(4096))
        return tuple(
            f"{zlib.crc32(row.tobytes()):08x}" for part in parts for row in part.numpy()
        )

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell which samples these are, in any order."""
        joined = "".join(sorted(self.keys())).encode()
        return f"{zlib.crc32(joined):08x}{zlib.adler32(joined):08x}"

    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        return FeatureLoader(self, plan, training=training)


class FeatureLoader(Loader):
    """Yield the batches of a plan from a bank's features.

    Args:
        split: Features and labels.
        plan: Which samples each batch has.
        training: Whether to draw one of the views for each sample.
    """

    def __init__(self, split: FeatureSplit, plan: BatchPlan, *, training: bool) -> None:
        super().__init__(plan)
        self.split = split
        self.num_views = len(split.features) if training else 1

    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        return map(self._batch, requests)

    def _batch(self, request: Request) -> Batch:
        ids = torch.from_numpy(request.sample_ids)
        views: NDArray[np.int64] | int = 0
        if self.num_views > 1:
            views = hashed_below(
                self.num_views,
                sample_ids=request.sample_ids,
                seed=self.plan.seed,
                epoch=request.epoch,
                occurrences=request.occurrences,
                stream=Stream.VIEW,
            )
        return Batch(self.split.take(ids, views), self.split.labels[ids], ids)
