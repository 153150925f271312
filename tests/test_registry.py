import pytest

from tailshift.registry import Registry, did_you_mean


@pytest.fixture
def methods():
    registry = Registry[int]("method")
    registry.add("softmax", 1)
    registry.add("lade", 2)
    registry.add("balanced_softmax", 3)
    return registry


def test_registry__gives_back_what_was_added(methods):
    assert methods.get("lade") == 2
    assert methods.names() == ["balanced_softmax", "lade", "softmax"]
    assert list(methods) == methods.names()
    assert "lade" in methods
    assert "lad" not in methods


def test_registry__names_the_nearest(methods):
    with pytest.raises(ValueError, match="unknown") as error:
        methods.get("lad")
    assert str(error.value) == (
        "unknown method 'lad'; did you mean 'lade'? "
        "Known: balanced_softmax, lade, softmax"
    )


def test_registry__lists_all_where_none_is_near(methods):
    with pytest.raises(ValueError, match="unknown") as error:
        methods.get("xyz")
    assert str(error.value) == (
        "unknown method 'xyz'; Known: balanced_softmax, lade, softmax"
    )


def test_registry__takes_a_name_once(methods):
    with pytest.raises(ValueError, match="already") as error:
        methods.add("lade", 4)
    assert str(error.value) == "method 'lade' is already registered."


def test_did_you_mean__is_empty_without_a_near_name():
    assert did_you_mean("zzz", ["lade"]) == ""
