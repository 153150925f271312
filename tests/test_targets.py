import re
from importlib import resources
from pathlib import Path

import pytest
import torch

from tailshift.priors import long_tailed_counts, read_counts, write_prior
from tailshift.targets import as_target_prior, exact_prior, target_counts

BIRDS = ("kea", "kiwi", "moa")


@pytest.mark.parametrize("spec", ["uniform", "forward:50", "backward:2.5"])
def test_target_counts__the_smallest_class_decides(spec):
    class_counts = torch.tensor([3, 50, 7])
    expected = target_counts(spec, class_counts, 20)
    available = torch.tensor([30, 20, 90])  # the smallest class decides
    assert torch.equal(target_counts(spec, class_counts, available), expected)


def test_target_counts__a_name_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uniform").write_text("1\n2\n")
    assert target_counts("uniform", [5, 5], 3).tolist() == [3, 3]
    assert target_counts(tmp_path / "uniform", [5, 5], 3).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site.txt", "4\n0\n2\n"),
        ("site", "4\r\n0\r\n2"),
        ("site.csv", "count\n4\n0\n2\n\n"),
        ("site.csv", "\ufeff4\n0\n2\n"),
        ("site.json", "[4, 0, 2]"),
        ("site.json", '{"kiwi": 0, "kea": 4, "moa": 2}'),
        ("site.csv", "class,count\nmoa,2\nkea,4\nkiwi,0\n"),
        ("site.csv", "2,2\n0,4\n1,0\n"),  # class ids
    ],
)
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_target_counts__files(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    target = kind(tmp_path / name)
    found = target_counts(target, [9, 9, 9], 10, class_names=BIRDS)
    assert found.tolist() == [4, 0, 2]


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
def test_target_counts__scales_counts_down_to_fit(counts, available, expected):
    resolved = target_counts(torch.tensor(counts), [1] * len(counts), available)
    assert resolved.tolist() == expected


def test_target_counts__scaled_counts_always_fit():
    for _ in range(50):
        counts = torch.randint(1, 10**9, (20,))
        available = torch.randint(1, 100, (20,))
        resolved = target_counts(counts, counts, available)
        assert (resolved <= available).all()
        assert (resolved == available).any()


def test_target_counts__shares_are_scaled_to_the_smallest_class(tmp_path):
    (tmp_path / "site.txt").write_text("0.5\n0.25\n0.25\n")
    found = target_counts(tmp_path / "site.txt", [9, 9, 9], [10, 8, 9])
    assert found.tolist() == [8, 4, 4]


def test_target_counts__source_is_the_mix_of_the_training_data():
    assert target_counts("source", [9, 3, 0], 6).tolist() == [6, 2, 0]
    assert exact_prior("source", [9, 3, 0], 6).tolist() == [0.75, 0.25, 0]


@pytest.mark.parametrize(
    ("target", "per_class", "message"),
    [
        (
            "sideways:3",
            5,
            "`target` must be one of source, uniform, forward:RATIO, backward:RATIO, "
            "permuted:RATIO, dirichlet:ALPHA, tweak:CLASS:SHARE, "
            "knock_out:CLASS,CLASS, SHARE,SHARE, CLASS=SHARE,CLASS=SHARE, a file of "
            "counts or shares or, in an evaluation, as_is, but is 'sideways:3'.",
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
def test_target_counts__refuses_with_a_sentence(target, per_class, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        target_counts(target, [5, 2], per_class)
    assert str(error.value) == message


def test_target_counts__counts_of_other_classes(tmp_path):
    path = tmp_path / "site.txt"
    path.write_text("1\n2\n3\n")
    with pytest.raises(ValueError, match="classes") as error:
        target_counts(path, [5, 2], 4)
    assert str(error.value) == f"{path} has 3 counts but there are 2 classes."


def test_read_counts__missing_file(tmp_path):
    path = tmp_path / "site.txt"
    with pytest.raises(FileNotFoundError) as error:
        target_counts(str(path), [5, 2], 4)
    assert str(error.value) == (
        f"There is no file {path} of counts. Write one integer a line, "
        "in the order of the class ids."
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "PATH must hold a list of counts, but does not."),
        ("a.json", b"{}", "PATH must hold a list of counts, but does not."),
        ("a.json", b"3", "PATH must hold a list of counts, but does not."),
        ("a.json", b"[3, 4", "PATH is not a file of counts: it cannot be read."),
        (
            "a.txt",
            b"\xff\xfe\x00",
            "`PATH` must be text in UTF-8, but byte 0 is not. Save it as UTF-8.",
        ),
        (
            "a.txt",
            b"3\n-4\n",
            "PATH must hold numbers >= 0, one per class, but holds '-4'.",
        ),
        (
            "a.txt",
            b"3\n\n4\n",
            "PATH must hold numbers >= 0, one per class, but holds ''.",
        ),
        (
            "a.txt",
            b"count\n4\n",
            "PATH must hold numbers >= 0, one per class, but holds 'count'.",
        ),
        (
            "a.csv",
            b"class,count\nkea,4\nkiwi\n",
            "PATH must hold a number per class, or each class and its number, but does "
            "not.",
        ),
        (
            "a.json",
            b"[3, true]",
            "PATH must hold numbers >= 0, one per class, but holds True.",
        ),
        (
            "a.json",
            b"[3, NaN]",
            "PATH must hold numbers >= 0, one per class, but holds nan.",
        ),
        (
            "a.csv",
            b"count\n" + 3000 * b"[" + b"\n2\n",
            f"PATH must hold numbers >= 0, one per class, but holds '{199 * '['}….",
        ),
        (
            "a.json",
            b'{"' + 3000 * b"k" + b'": 1}',
            f"PATH names an unknown class '{199 * 'k'}….",
        ),
        ("a.txt", b"0\n0\n", "PATH must not hold 0 for every class."),
        (
            "a.csv",
            b"count\n",
            "PATH must hold a number per class, or each class and its number, but does "
            "not.",
        ),
        (
            "a.json",
            b'{"kea": 1, "kiwl": 2, "moa": 1}',
            "PATH names an unknown class 'kiwl'; did you mean 'kiwi'?",
        ),
        (
            "a.json",
            b'{"kea": 1, "kiwi": 2, "kea": 1}',
            "PATH must name each class once, but names one twice.",
        ),
        (
            "a.json",
            b'{"kea": 1, "kiwi": 2}',
            "PATH must hold every class, but lacks 'moa'. Write 0 for a class that "
            "does not occur.",
        ),
    ],
)
def test_read_counts__refuses_with_a_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name) as error:
        read_counts(path, BIRDS)
    assert str(error.value) == message.replace("PATH", str(path))


def test_read_counts__names_of_classes_that_are_not_known(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"kea": 3}')
    with pytest.raises(ValueError, match="kea") as error:
        read_counts(path)
    assert str(error.value) == (
        f"{path} names an unknown class 'kea'; class names are not known here, so "
        "write class ids."
    )


STRANGE = ("=1+1", "kea\x1b[31m", "caf\udce9")  # the last is not UTF-8


@pytest.mark.parametrize(
    "names", [BIRDS, ("2", "0", "1"), ("a,b", 'c"d', "é"), STRANGE, ()]
)
@pytest.mark.parametrize("suffix", [".json", ".csv", ".txt"])
def test_write_prior__is_read_back(tmp_path, names, suffix):
    """Classes named by numbers are read by their names, not as ids."""
    prior = torch.tensor([1 / 3, 1e-17, 2 / 3], dtype=torch.float64)
    path = tmp_path / f"mix{suffix}"
    write_prior(path, prior, names)
    found = as_target_prior(str(path), num_classes=3, class_names=names)
    torch.testing.assert_close(found, prior, rtol=1e-15, atol=0)


def test_write_prior__no_formula_or_control_character(tmp_path):
    write_prior(tmp_path / "a.csv", [0.5, 0.25, 0.25], STRANGE)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == (
        "class,share\n'=1+1,0.5\nkea\\x1b[31m,0.25\ncaf\\udce9,0.25\n"
    )


def test_write_prior__names_the_classes(tmp_path):
    write_prior(tmp_path / "a.csv", [0.5, 0.25, 0.25], BIRDS)
    assert (tmp_path / "a.csv").read_text() == (
        "class,share\nkea,0.5\nkiwi,0.25\nmoa,0.25\n"
    )


def test_as_target_prior__every_form(tmp_path):
    (tmp_path / "site.txt").write_text("4\n2\n2\n")
    known = {"num_classes": 3, "source_counts": [50, 20, 10], "class_names": BIRDS}
    for target in (
        [0.5, 0.25, 0.25],
        torch.tensor([0.5, 0.25, 0.25]),
        str(tmp_path / "site.txt"),
        tmp_path / "site.txt",
        "tweak:kea:0.5",
        "tweak:0:0.5",
    ):
        assert as_target_prior(target, **known).tolist() == [0.5, 0.25, 0.25]
    assert as_target_prior("source", **known).tolist() == [0.625, 0.25, 0.125]
    assert as_target_prior("knock_out:moa,0", **known).tolist() == [0, 1, 0]


def test_as_target_prior__a_name_goes_before_an_id():
    known = {"num_classes": 3, "class_names": ("2", "0", "a,b")}
    assert as_target_prior("tweak:2:0.5", **known).tolist() == [0.5, 0.25, 0.25]
    assert as_target_prior("knock_out:a,b", **known).tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            [4, 2, 2],
            "`target_prior` must sum to 1, but sums to 8.0000 (3 classes). Build it "
            "with priors.from_counts(counts).",
        ),
        ([0.5, 0.5], "`target_prior` has 2 entries but `logits` has 3 classes."),
        (
            "source",
            "Target 'source' follows the training counts, which are not known here. "
            "Give `source_counts`, or use 'uniform' or a file of counts.",
        ),
        (
            "tweak:keA:0.5",
            "Target 'tweak:keA:0.5' names class keA, but the classes are 'kea', "
            "'kiwi', 'moa'; did you mean 'kea'?",
        ),
        (
            "tweak:Nope:0.5",
            "Target 'tweak:Nope:0.5' names class Nope, but the classes are 'kea', "
            "'kiwi', 'moa'.",
        ),
        (
            "knock_out:kea,3",
            "Target 'knock_out:kea,3' names class 3, but there are 3 classes, 0 to 2.",
        ),
    ],
)
def test_as_target_prior__refuses_with_a_sentence(target, message):
    with pytest.raises(ValueError, match="arget") as error:
        as_target_prior(target, num_classes=3, class_names=BIRDS)
    assert str(error.value) == message


def test_as_target_prior__shows_the_first_of_many_names():
    names = [f"bird {c}" for c in range(9)]
    with pytest.raises(ValueError, match="Nope") as error:
        as_target_prior("tweak:Nope:0.5", num_classes=9, class_names=names)
    assert str(error.value) == (
        "Target 'tweak:Nope:0.5' names class Nope, but the classes are 'bird 0', "
        "'bird 1', 'bird 2', 'bird 3', 'bird 4', …."
    )
    with pytest.raises(ValueError, match="Nope") as error:
        as_target_prior("tweak:Nope:0.5", num_classes=9)
    assert str(error.value) == (
        "Target 'tweak:Nope:0.5' names class Nope, but there are 9 classes, 0 to 8."
    )


def test_exact_prior__keeps_what_rounding_loses():
    prior = exact_prior("forward:50", [9, 5, 1], [4, 0, 4])
    torch.testing.assert_close(prior, torch.tensor([50.0, 0, 1]).double() / 51)
    rounded = target_counts("forward:50", [9, 5, 1], [4, 0, 4])
    assert rounded.tolist() == [4, 0, 0]


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
def test_target_counts__sizes_of_imagenet_lt_by_its_own_counts(direction):
    file = resources.files("tailshift") / "data/counts/imagenet_lt_train_counts.txt"
    class_counts = read_counts(Path(str(file)))
    sizes = [
        int(target_counts(f"{direction}:{ratio}", class_counts, 50).sum())
        for ratio in (50, 25, 10, 5, 2)
    ]
    assert sizes == [12058, 14437, 19059, 24365, 35574]


@pytest.mark.paper
@pytest.mark.parametrize("imbalance_ratio", [10, 50, 100])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_target_counts__sizes_of_cifar_100_lt(direction, imbalance_ratio):
    class_counts = long_tailed_counts(500, imbalance_ratio, 100)
    sizes = [
        int(target_counts(f"{direction}:{ratio}", class_counts, 100).sum())
        for ratio in (50, 25, 10, 5, 2)
    ]
    assert sizes == [2486, 2956, 3876, 4932, 7166]


def test_target_counts__a_tweak_that_cannot_be_drawn():
    with pytest.raises(ValueError, match="tweak") as error:
        target_counts("tweak:0:0.9", [9, 5, 1], 4)
    assert str(error.value) == (
        "Target 'tweak:0:0.9' leaves class 1 less than one sample if the largest "
        "class has 4. Use the re-weighted way, which draws no samples "
        "(sampling='reweighted')."
    )
    prior = exact_prior("tweak:0:0.9", [9, 5, 1], 4)
    torch.testing.assert_close(prior, torch.tensor([0.9, 0.05, 0.05]).double())


def test_target_counts__knocked_out_classes_set_no_limit():
    assert target_counts("knock_out:1", [9, 5, 1], [8, 2, 9]).tolist() == [8, 0, 8]
