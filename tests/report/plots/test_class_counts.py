"""The long tail: counts in falling order, coloured by group."""

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report.plots import class_counts_plot, sorted_counts


def _predictions(counts: list[int]) -> Predictions:
    n = len(counts)
    return Predictions(torch.zeros(n, n), torch.arange(n), torch.tensor(counts))


def test_plot__largest_first_on_a_log_axis() -> None:
    predictions = _predictions([5, 300, 5, 40])
    assert sorted_counts(predictions).tolist() == [300, 40, 5, 5]
    figure = class_counts_plot(predictions)
    [axes] = figure.axes
    bars = [[bar.get_height() for bar in group] for group in axes.containers]
    assert bars == [[300], [40], [5, 5]]
    assert axes.get_yscale() == "log"
    [legend] = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["many (1)", "medium (1)", "few (2)"]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["class 1", "class 3", "class 0", "class 2"]


def test_plot__a_class_without_images() -> None:
    [axes] = class_counts_plot(_predictions([9, 0])).axes
    assert axes.get_ylim()[0] > 0


def test_sorted_counts__unknown() -> None:
    with pytest.raises(ValueError, match="source_counts") as error:
        sorted_counts(Predictions(torch.eye(2), torch.arange(2)))
    assert str(error.value) == (
        "`predictions` must know its source_counts to show them, but has none. "
        "Save it with the training images of each class."
    )
