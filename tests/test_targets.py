import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift.priors import long_tailed_counts
from tailshift.targets import (
    exact_prior,
    read_counts,
    resolve_target,
    shifted_subset,
    target_counts,
    target_prior,
)


def _reference_subset(labels, counts):
    left, taken = list(counts), []
    for index, label in enumerate(labels):
        if left[label] > 0:
            left[label] -= 1
            taken.append(index)
    return taken


def test_shifted_subset__worked_example():
    """The first two of class 0 are samples 1 and 2, the first of class 2 is 3."""
    assert shifted_subset([1, 0, 0, 2, 0, 2], [2, 0, 1]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_shifted_subset__as_a_loop(kind):
    labels = torch.randint(7, (300,)).tolist()
    counts = [3, 0, 9, 1, 12, 5, 20]
    indices = shifted_subset(kind(labels), kind(counts))
    assert indices.dtype == torch.int64
    assert indices.tolist() == _reference_subset(labels, counts)


def test_shifted_subset__whole_set():
    labels = torch.tensor([1, 0, 1])
    assert shifted_subset(labels, torch.bincount(labels)).tolist() == [0, 1, 2]


@pytest.mark.paper
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("num_classes", "per_class", "ratio", "size"),
    [
        (100, 100, 50, 2486),
        (100, 100, 25, 2956),
        (100, 100, 10, 3876),
        (100, 100, 5, 4932),
        (100, 100, 2, 7166),
        (1000, 50, 50, 12058),
        (1000, 50, 25, 14437),
        (1000, 50, 10, 19059),
        (1000, 50, 5, 24365),
        (1000, 50, 2, 35574),
    ],
)
def test_shifted_subset__sizes_in_the_paper(
    direction, num_classes, per_class, ratio, size
):
    class_counts = long_tailed_counts(500, 100, num_classes)
    class_counts = class_counts[torch.randperm(num_classes)]
    labels = torch.arange(num_classes).repeat(per_class)
    labels = labels[torch.randperm(len(labels))]
    counts = target_counts(f"{direction}:{ratio}", class_counts, per_class)
    indices = shifted_subset(labels, counts)
    assert len(indices) == size
    assert torch.equal(torch.bincount(labels[indices], minlength=num_classes), counts)
    assert (indices.diff() > 0).all()


@pytest.mark.parametrize(
    ("labels", "counts", "exception", "message"),
    [
        (
            [0, 0, 1],
            [1, 2],
            ValueError,
            "`counts` asks for 2 samples of class 1, but `labels` has 1.",
        ),
        (
            [0, 2],
            [1, 0],
            ValueError,
            "`labels` must lie in 0..1, but label 1 (counted from 0) is 2.",
        ),
        ([0, 1], [0, 0], ValueError, "`counts` must not be 0 for every class."),
        (
            [0, 1],
            [0.5, 0.5],
            TypeError,
            "`counts` must be integers, but are torch.float32.",
        ),
    ],
)
def test_shifted_subset__refuses_with_a_sentence(labels, counts, exception, message):
    with pytest.raises(exception) as error:
        shifted_subset(labels, counts)
    assert str(error.value) == message


@pytest.mark.parametrize("spec", ["uniform", "forward:50", "backward:2.5"])
def test_resolve_target__names_as_in_priors(spec):
    class_counts = torch.tensor([3, 50, 7])
    expected = target_counts(spec, class_counts, 20)
    assert torch.equal(resolve_target(spec, class_counts, 20), expected)
    available = torch.tensor([30, 20, 90])  # the smallest class decides
    assert torch.equal(resolve_target(spec, class_counts, available), expected)


def test_resolve_target__a_name_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uniform").write_text("1\n2\n")
    assert resolve_target("uniform", [5, 5], 3).tolist() == [3, 3]
    assert resolve_target(tmp_path / "uniform", [5, 5], 3).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site.txt", "4\n0\n2\n"),
        ("site", "4\r\n0\r\n2"),
        ("site.csv", "count\n4\n0\n2\n\n"),
        ("site.csv", "\ufeff4\n0\n2\n"),
        ("site.json", "[4, 0, 2]"),
    ],
)
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_resolve_target__files(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    target = kind(tmp_path / name)
    assert resolve_target(target, [9, 9, 9], 10).tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    ("counts", "available", "expected"),
    [
        ([30, 10, 5], 6, [6, 2, 1]),  # × 6/30
        ([30, 10, 5], 30, [30, 10, 5]),
        ([30, 10, 5], [30, 2, 9], [6, 2, 1]),  # class 1 is the tightest: × 2/10
        ([4, 0, 2], [4, 0, 2], [4, 0, 2]),  # nothing asked of the missing class
        ([7, 3], 3, [3, 1]),  # 9/7 is truncated
    ],
)
def test_resolve_target__scales_counts_down_to_fit(counts, available, expected):
    resolved = resolve_target(torch.tensor(counts), [1] * len(counts), available)
    assert resolved.tolist() == expected


def test_resolve_target__scaled_counts_always_fit():
    for _ in range(50):
        counts = torch.randint(1, 10**9, (20,))
        available = torch.randint(1, 100, (20,))
        resolved = resolve_target(counts, counts, available)
        assert (resolved <= available).all()
        assert (resolved == available).any()


def test_target_prior__is_the_share_of_each_class():
    prior = target_prior("backward:4", [9, 5, 1], 8)
    expected = torch.tensor([2, 4, 8], dtype=torch.float64) / 14
    torch.testing.assert_close(prior, expected)


@pytest.mark.parametrize(
    ("target", "per_class", "message"),
    [
        (
            "sideways:3",
            5,
            "`target` must be one of uniform, forward:RATIO, backward:RATIO, "
            "permuted:RATIO, dirichlet:ALPHA, tweak:CLASS:SHARE, "
            "knock_out:CLASS,CLASS, as_is, or a file of counts, but is 'sideways:3'.",
        ),
        ("uniform", [0, 0], "`per_class` must be at least 1, but is 0."),
        (
            torch.tensor([1, 1]),
            [0, 3],
            "Target 'counts' needs samples of class 0, but the test set has none.",
        ),
        (
            torch.tensor([1, 1, 1]),
            4,
            "`target` has 3 entries but there are 2 classes.",
        ),
        ("uniform", [3, 3, 3], "`per_class` has 3 entries but `class_counts` has 2."),
    ],
)
def test_resolve_target__refuses_with_a_sentence(target, per_class, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        resolve_target(target, [5, 2], per_class)
    assert str(error.value) == message


def test_resolve_target__counts_of_other_classes(tmp_path):
    path = tmp_path / "site.txt"
    path.write_text("1\n2\n3\n")
    with pytest.raises(ValueError, match="classes") as error:
        resolve_target(path, [5, 2], 4)
    assert str(error.value) == f"{path} has 3 counts but there are 2 classes."


def test_read_counts__missing_file(tmp_path):
    path = tmp_path / "site.txt"
    with pytest.raises(FileNotFoundError) as error:
        resolve_target(str(path), [5, 2], 4)
    assert str(error.value) == (
        f"There is no file {path} of counts. Write one integer a line, "
        "in the order of the class ids."
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "PATH must hold a list of counts, but does not."),
        ("a.json", b'{"kea": 3}', "PATH must hold a list of counts, but does not."),
        ("a.json", b"[3, 4", "PATH is not a file of counts: it cannot be read."),
        ("a.txt", b"\xff\xfe\x00", "PATH is not a file of counts: it cannot be read."),
        (
            "a.txt",
            b"3\n-4\n",
            "PATH must hold integers >= 0, one a class, but holds '-4'.",
        ),
        (
            "a.txt",
            b"3\n\n4\n",
            "PATH must hold integers >= 0, one a class, but holds ''.",
        ),
        (
            "a.txt",
            b"count\n4\n",
            "PATH must hold integers >= 0, one a class, but holds 'count'.",
        ),
        (
            "a.csv",
            b"class,count\n0,4\n",
            "PATH must hold integers >= 0, one a class, but holds '0,4'.",
        ),
        (
            "a.json",
            b"[3, true]",
            "PATH must hold integers >= 0, one a class, but holds True.",
        ),
        (
            "a.json",
            b"[3, 0.5]",
            "PATH must hold integers >= 0, one a class, but holds 0.5.",
        ),
        ("a.txt", b"0\n0\n", "PATH must not hold 0 for every class."),
        ("a.csv", b"count\n", "PATH must not hold 0 for every class."),
    ],
)
def test_read_counts__refuses_with_a_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name) as error:
        read_counts(path)
    assert str(error.value) == message.replace("PATH", str(path))


def test_exact_prior__keeps_what_rounding_loses():
    prior = exact_prior("forward:50", [9, 5, 1], [4, 0, 4])
    torch.testing.assert_close(prior, torch.tensor([50.0, 0, 1]).double() / 51)
    rounded = target_prior("forward:50", [9, 5, 1], [4, 0, 4])
    assert rounded.tolist() == [1, 0, 0]


def test_exact_prior__of_counts_is_their_share(tmp_path):
    path = tmp_path / "site.txt"
    path.write_text("300\n100\n")
    assert exact_prior(path, [9, 1], 4).tolist() == [0.75, 0.25]
    with pytest.raises(ValueError, match="class 1") as error:
        exact_prior(path, [9, 1], [4, 0])
    assert str(error.value) == (
        f"Target {str(path)!r} needs samples of class 1, but the test set has none."
    )


@pytest.mark.paper
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_resolve_target__sizes_of_imagenet_lt_by_its_own_counts(direction):
    file = resources.files("tailshift") / "data/counts/imagenet_lt_train_counts.txt"
    class_counts = read_counts(Path(str(file)))
    sizes = [
        int(resolve_target(f"{direction}:{ratio}", class_counts, 50).sum())
        for ratio in (50, 25, 10, 5, 2)
    ]
    assert sizes == [12058, 14437, 19059, 24365, 35574]


@pytest.mark.paper
@pytest.mark.parametrize("imbalance_ratio", [10, 50, 100])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_resolve_target__sizes_of_cifar_100_lt(direction, imbalance_ratio):
    class_counts = long_tailed_counts(500, imbalance_ratio, 100)
    sizes = [
        int(resolve_target(f"{direction}:{ratio}", class_counts, 100).sum())
        for ratio in (50, 25, 10, 5, 2)
    ]
    assert sizes == [2486, 2956, 3876, 4932, 7166]


def test_resolve_target__a_tweak_that_cannot_be_drawn():
    with pytest.raises(ValueError, match="tweak") as error:
        resolve_target("tweak:0:0.9", [9, 5, 1], 4)
    assert str(error.value) == (
        "Target 'tweak:0:0.9' leaves class 1 less than one sample where the largest "
        "class has 4. Take the re-weighted way, which draws no samples "
        "(sampling='reweighted')."
    )
    prior = exact_prior("tweak:0:0.9", [9, 5, 1], 4)
    torch.testing.assert_close(prior, torch.tensor([0.9, 0.05, 0.05]).double())


def test_resolve_target__knocked_out_classes_set_no_limit():
    assert resolve_target("knock_out:1", [9, 5, 1], [8, 2, 9]).tolist() == [8, 0, 8]
