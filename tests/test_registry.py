import pytest

from tailshift import registry
from tailshift.methods import METHODS
from tailshift.registry import OWN, Registry, did_you_mean


@pytest.fixture
def methods():
    registry = Registry[int]("method")
    registry.register("softmax")(1)
    registry.register("lade")(2)
    registry.register("balanced_softmax")(3)
    return registry


def test_registry__gives_back_what_was_added(methods):
    assert methods.get("lade") == 2
    assert methods.names() == ["balanced_softmax", "lade", "softmax"]
    assert list(methods) == methods.names()
    assert "lade" in methods
    assert "lad" not in methods
    assert methods.name_of(2) == "lade"


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


def test_registry__takes_a_name_once():
    with pytest.raises(ValueError, match="already") as error:
        METHODS.register("lade")(METHODS.get("softmax"))
    assert str(error.value) == (
        "method 'lade' is already registered by tailshift. Choose another name."
    )
    assert METHODS.get("lade").__name__ == "LADE"


def test_registry__takes_its_kind_alone():
    with pytest.raises(TypeError, match="must be") as error:
        METHODS.register("mine")(dict)
    assert str(error.value) == (
        "method 'mine' must be a Method, but is <class 'dict'>."
    )
    assert "mine" not in METHODS


def test_registry__what_is_not_registered_has_no_name():
    class Mine(METHODS.get("lade")):
        pass

    with pytest.raises(ValueError, match="registered") as error:
        METHODS.name_of(Mine)
    assert str(error.value) == (
        "Mine must be registered as a method, but is not. Put the decorator "
        "register(NAME) of its registry above it."
    )


def test_registry__sentence_is_the_entrys_own():
    class Stated:
        """Not this one."""

        sentence = "This one."

    class Heir(Stated):
        """Return :math:`x` as ``f`` has it.

        And more.
        """

    things = Registry[type]("thing")
    things.register("stated")(Stated)
    things.register("heir")(Heir)
    things.register("form", about=Heir)(dict)
    assert [things.sentence(name) for name in ("stated", "heir", "form")] == [
        "This one.",
        "X as `f` has it.",
        "X as `f` has it.",
    ]


def test_origin__is_the_file_that_registers(methods):
    """Not where the class was written: LADE under another name is this file's."""
    things = Registry[type]("thing")
    things.register("lade")(METHODS.get("lade"))
    origin = things.origin("lade")
    assert (origin.name, origin.version) == (__file__, "")
    assert len(origin.sha256) == 64
    assert METHODS.origin("lade") == OWN
    assert str(OWN) == "tailshift"


def test_registries__all_entries_are_described():
    for kind in registry._registries:
        for name in kind:
            if kind.origin(name) == OWN:
                assert kind.sentence(name).endswith("."), (kind.kind, name)


def test_did_you_mean__is_empty_without_a_near_name():
    assert did_you_mean("zzz", ["lade"]) == ""
