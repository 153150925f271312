"""The book of priors: by hand, through a file, from logits, and what it refuses."""

import json

import pytest
import torch
from scipy.stats import beta

import tailshift as ts
from tailshift import priors
from tailshift.estimators.shrinkage import shrink

NAMES, EVEN = ["kea", "kiwi"], [0.5, 0.5]


@pytest.fixture
def book():
    book = ts.SitePriors(NAMES, EVEN)
    book.add("north")
    book.add("lake", counts=[90, 10], parent="north")
    book.add("hill", shares=[0.7, 0.3], num_samples=10, parent="north")
    book.add("south", counts=[5, 45])
    return book


def test_prior__of_a_group_by_hand(book):
    """q_all = (A p_s + ñ) / (A + ñ·), and 0.001 of it is the source prior."""
    own = torch.tensor([[0, 0], [0, 0], [90, 10], [7, 3], [5, 45]]).double()
    q = shrink(own, [-1, 0, 1, 1, 0], priors.uniform(2))
    by_hand = (q.strengths[-1] / 2 + q.totals[0]) / (
        q.strengths[-1] + q.totals[0].sum()
    )
    torch.testing.assert_close(book.prior("all"), 0.999 * by_hand + 0.0005)
    torch.testing.assert_close(book.prior("north"), 0.999 * q.means[1] + 0.0005)


def test_prior__of_a_site_is_the_median_of_two_classes(book):
    """Of two shares that sum to 1 the nearest in distance is the median."""
    north = (book.prior("north") - 0.0005) / 0.999
    a = book.strength("north") * north + torch.tensor([90, 10])
    median = beta(*a.tolist()).median()
    assert book.prior("lake")[0].item() == pytest.approx(
        0.999 * median + 0.0005, abs=1e-4
    )


def test_prior__of_a_site_without_samples_is_its_parents(book):
    book.add("new", parent="north")
    torch.testing.assert_close(book.prior("new"), book.prior("north"))


def test_prior__no_class_is_impossible_by_accident():
    book = ts.SitePriors(["a", "b", "c"], [0.9, 0.09, 0.01])
    for k in range(20):
        book.add(f"site {k}", counts=[10**6, 0, 0])
    assert (book.prior("site 3") >= 0.999e-3 * book.source_prior).all()
    open_floor = ts.SitePriors(["a", "b"], EVEN, floor=0.0)
    open_floor.add("x", counts=[10**9, 0])
    assert 0 < open_floor.prior("x")[1] < 1e-6


def test_prior__follows_a_change(book):
    before = book.prior("hill")
    book.add("hill", counts=[0, 500], parent="north", overwrite=True)
    assert book.prior("hill")[1] > 0.9 > before[1]


def test_file__gives_the_same_book(book, tmp_path):
    book.save(tmp_path / "book.json")
    again = ts.SitePriors.load(tmp_path / "book.json")
    assert (again.sites, again.class_names, again.floor) == (
        book.sites,
        book.class_names,
        book.floor,
    )
    for site in ("all", *book.sites):
        assert torch.equal(again.prior(site), book.prior(site))
    content = json.loads((tmp_path / "book.json").read_text())
    assert content["sites"]["lake"] == {"parent": "north", "counts": [90, 10]}
    assert repr(again) == "SitePriors(4 sites, 2 classes)"


def test_file__written_by_hand(tmp_path):
    content = {"class_names": NAMES, "source_prior": EVEN, "sites": {"x": {}}}
    (tmp_path / "book.json").write_text(json.dumps(content))
    assert ts.SitePriors.load(tmp_path / "book.json").prior("x").tolist() == EVEN


def test_update__counts_as_much_as_it_knows(mixture):
    mixture, p_t = mixture(4), priors.from_counts([1, 1, 1, 7])
    em = ts.EMEstimator(source_prior=mixture.source_prior)
    em.fit(*mixture.draw(mixture.source_prior, 2000, seed=1))
    book = ts.SitePriors("abcd", mixture.source_prior)
    book.add("region")
    book.add("x", parent="region")
    book.update("x", mixture.draw(p_t, 300, seed=2)[0], em)
    assert book.num_samples("x") == em.effective_samples_
    assert 100 < book.num_samples("x") < 300
    assert (book.prior("x") - p_t).abs().sum() < 0.2
    x = book.prior("x")
    book.update("x", mixture.draw(p_t, 300, seed=2)[0].numpy(), em)
    assert torch.equal(book.prior("x"), x)


def _told(error, act, *args, **kwargs):
    with pytest.raises(error) as raised:
        act(*args, **kwargs)
    return str(raised.value)


def test_errors__of_names(book):
    assert _told(ValueError, book.prior, "lak") == (
        "unknown site 'lak'; did you mean 'lake'? Known: north, lake, hill, south"
    )
    assert _told(ValueError, book.update, "x", torch.zeros(1, 2), ts.EMEstimator()) == (
        "unknown site 'x'; Known: north, lake, hill, south"
    )
    assert _told(ValueError, book.add, "lake") == (
        "`site` must be new, but 'lake' is in the book. Give overwrite=True to "
        "replace it."
    )
    assert _told(ValueError, book.add, "all") == (
        "`site` must be a name other than 'all', which is the parent of all sites, "
        "but is 'all'."
    )
    assert _told(ValueError, book.strength, "lake") == (
        "`parent` must be a group, but no site is in 'lake'."
    )


def test_errors__of_parents(book):
    assert _told(ValueError, book.add, "x", parent="nroth") == (
        "`parent` must be 'all' or a site of the book, but 'x' has 'nroth'; did you "
        "mean 'north'? Add the parent first."
    )
    assert _told(ValueError, book.add, "north", parent="lake", overwrite=True) == (
        "`parent` must lead to 'all', but 'north' → 'lake' → 'north' is a circle."
    )
    assert _told(TypeError, book.add, "x", parent=None) == (
        "`parent` must be the name of a site, or 'all', but is NoneType."
    )
    assert book.sites == ("north", "lake", "hill", "south")


def test_errors__of_mixes(book):
    assert _told(ValueError, book.add, "x", counts=[1, 2], shares=EVEN) == (
        "`counts` must stand alone, but `shares` or `num_samples` came with them: "
        "counts say how many samples there are."
    )
    assert _told(ValueError, book.add, "x", shares=EVEN) == (
        "`shares` and `num_samples` must come together, but there is no "
        "`num_samples`. Say how many labelled samples the shares are worth."
    )
    assert _told(ValueError, book.add, "x", shares=EVEN, num_samples=-1) == (
        "`num_samples` must be finite and not negative, but is -1."
    )
    assert _told(ValueError, book.add, "x", shares=[1.0], num_samples=3) == (
        "`shares` has 1 entries but there are 2 classes."
    )
    assert _told(ValueError, book.add, "x", counts=[1, 2, 3]) == (
        "`counts` has 3 entries but there are 2 classes."
    )
    assert _told(ValueError, ts.SitePriors, NAMES, [1.0]) == (
        "`class_names` has 2 names but `source_prior` has 1 entries."
    )
    assert _told(ValueError, ts.SitePriors, NAMES, EVEN, floor=1.0) == (
        "`floor` must be at least 0 and less than 1, but is 1."
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sites": {"x": {"parent": "y"}}}, "cannot be used: `parent` must be 'all' or "
         "a site of the book, but 'x' has 'y'. Add the parent first."),
        ({"sites": {"x": {"parent": "y"}, "y": {"parent": "x"}}}, "cannot be used: "
         "`parent` must lead to 'all', but 'x' → 'y' → 'x' is a circle."),
        ({"sites": {"x": {"counts": [1, -1]}}}, "cannot be used: `counts` must not be "
         "negative, but is -1 for class 1."),
        ({"sites": {"x": {"shares": EVEN}}}, "cannot be used: `shares` and "
         "`num_samples` must come together, but there is no `num_samples`. Say how "
         "many labelled samples the shares are worth."),
        ({"sites": {"x": {"shares": ["a"]}}}, "is no book of priors: "
         "`sites.x.shares.0` must be a valid number, but is 'a'."),
        ({"sites": {"x": {"share": EVEN}}}, "is no book of priors: `sites.x.share` is "
         "unknown."),
        ({"sites": None}, "is no book of priors: `sites` must be a valid dictionary, "
         "but is None."),
        ({"source_prior": [1.0, 0.0]}, "cannot be used: `source_prior` must be "
         "positive for every class, but is 0 for class 1 (2 classes). Drop the class "
         "or give it a sample."),
    ],
)  # fmt: skip
def test_errors__of_files(change, reason, tmp_path):
    path = tmp_path / "book.json"
    content = {"class_names": NAMES, "source_prior": EVEN, "sites": {}} | change
    path.write_text(json.dumps(content))
    assert _told(ValueError, ts.SitePriors.load, path) == f"{path} {reason}"


def test_errors__of_an_edited_file(book, tmp_path):
    path = tmp_path / "book.json"
    book.save(path)
    path.write_text(path.read_text().replace("90", "9"))
    assert _told(ValueError, ts.SitePriors.load, path) == (
        f"{path} was edited after it was written: `sites` does not fit the checksum. "
        "Undo the edit, or write it with SitePriors."
    )
