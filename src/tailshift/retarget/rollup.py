"""Roll probabilities up a taxonomy: the most specific node that is sure enough."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tailshift.files import read_text
from tailshift.retarget.scores import ScoreArray
from tailshift.text import cut

SEPARATOR = "/"


class Taxonomy:
    """A tree whose leaves are classes; a node's probability is that of its leaves.

    Args:
        class_names: One per class.
        parents: Parent of each class and node; what has none is below ``root``.
        root: Name of the root.

    Example:
        >>> tree = Taxonomy(["roe", "red", "fox"], {"roe": "deer", "red": "deer"})
        >>> p = np.array([[0.5, 0.45, 0.05]])
        >>> tree.roll_up(p, 0.9)
        [('deer', 0.95)]
    """

    def __init__(
        self,
        class_names: Sequence[str],
        parents: Mapping[str, str],
        *,
        root: str = "anything",
    ) -> None:
        self.class_names, self.root = tuple(class_names), root
        self.paths = [self._path(name, parents) for name in class_names]
        nodes = dict.fromkeys(node for path in self.paths for node in path)
        self.nodes = tuple(nodes)
        index = {node: i for i, node in enumerate(self.nodes)}
        self._members = np.zeros((len(class_names), len(self.nodes)))
        self._depths = np.zeros(len(self.nodes), dtype=int)
        for c, path in enumerate(self.paths):
            for depth, node in enumerate(path):
                self._members[c, index[node]] = 1.0
                self._depths[index[node]] = depth

    @classmethod
    def from_names(cls, class_names: Sequence[str]) -> "Taxonomy":
        """Return the tree of names such as ``Fruit/Apple/Gala``."""
        parents = {}
        for name in class_names:
            parts = name.split(SEPARATOR)
            for i in range(len(parts) - 1, 0, -1):
                parents[SEPARATOR.join(parts[: i + 1])] = SEPARATOR.join(parts[:i])
        return cls(class_names, parents)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], class_names: Sequence[str]
    ) -> "Taxonomy":
        """Return the tree in a CSV file with a child and its parent per line."""
        path = Path(path)
        rows = list(csv.reader(io.StringIO(read_text(path))))
        rows = [[cell.strip() for cell in row] for row in rows if any(row)]
        if not rows or any(len(row) != 2 for row in rows):
            raise ValueError(f"{path} must hold a child and its parent per line.")
        parents: dict[str, str] = {}
        for child, parent in rows:
            if parents.setdefault(child, parent) != parent:
                raise ValueError(f"{path} gives {cut(repr(child))} two parents.")
        if not set(parents) & set(class_names):
            raise ValueError(f"{path} has no class of the predictions.")
        return cls(class_names, parents)

    def node_probabilities(self, p: ScoreArray) -> ScoreArray:
        """Return the probability of each node, (N, nodes), of probabilities (N, C)."""
        return np.asarray(p @ self._members)

    def roll_up(self, p: ScoreArray, confidence: float) -> list[tuple[str, float]]:
        """Return the most specific node of each row that reaches a probability.

        Args:
            p: Probabilities under the target prior, shape (N, C).
            confidence: In (0, 1]; at most the probability of the node.
        """
        if not 0 < confidence <= 1:
            raise ValueError(f"`confidence` must be in (0, 1], got {confidence:g}.")
        sums = self.node_probabilities(p)
        total = p.sum(axis=1, keepdims=True)
        reaches = sums >= np.minimum(confidence, total) - 1e-12
        # The deepest node counts; of nodes at one depth the most probable one.
        rank = np.where(reaches, self._depths + sums / 2, -1.0)
        best = rank.argmax(axis=1)
        return [
            (self.nodes[i], round(float(row[i]), 12))
            for i, row in zip(best, sums, strict=True)
        ]

    def common_node(self, classes: Iterable[int]) -> str:
        """Return the most specific node that holds all classes of a prediction set.

        Example:
            >>> tree = Taxonomy(["roe", "red", "fox"], {"roe": "deer", "red": "deer"})
            >>> tree.common_node([0, 1]), tree.common_node([0, 2])
            ('deer', 'anything')
        """
        paths = [self.paths[c] for c in classes]
        if not paths:
            return self.root
        shared = self.root
        for level in zip(*paths, strict=False):
            if len(set(level)) > 1:
                break
            shared = level[0]
        return shared

    def _path(self, name: str, parents: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes from the root to a class."""
        path = [name]
        while (parent := parents.get(path[-1], "")) not in ("", self.root):
            if parent in path:
                raise ValueError(f"{cut(repr(name))} is its own ancestor.")
            path.append(parent)
        return (self.root, *reversed(path))
