import pickle
import re
from fractions import Fraction

import numpy as np
import pytest

from tailshift.data.safe_pickle import load_plain_pickle

TRUSTED = "Fetch the file again from a source you trust."
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def _calls(function, *arguments):
    """An object whose pickle calls `function` when it is read."""

    class Caller:
        def __reduce__(self):
            return function, arguments

    return Caller()


def test_load_plain_pickle__a_file_of_python_2_by_hand(path):
    """Strings of Python 2, NumPy 1's module path, an array of shape (2, 3)."""
    path.write_bytes(
        b"\x80\x02}(U\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01K\x02K\x03\x86"  # version, shape
        b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06\x00\x01\x7f\x80\xfe\xfftb"  # C order, bytes
        b"U\x06labels](K\x04K\x05eu."
    )
    table = load_plain_pickle(path)
    assert table["data"].tolist() == [[0, 1, 127], [128, 254, 255]]
    assert table["data"].dtype == np.uint8
    assert table["labels"] == [4, 5]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_load_plain_pickle__arrays_come_back(path, protocol, dtype, order):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype, order=order)
    path.write_bytes(pickle.dumps({"data": array}, protocol=protocol))
    result = load_plain_pickle(path)["data"]
    assert result.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert np.array_equal(result, array)


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_load_plain_pickle__module_names_of_numpy_1_and_2(path, core):
    content = pickle.dumps(np.arange(5, dtype=np.uint8), protocol=2)
    path.write_bytes(re.sub(rb"numpy\._?core", core, content))
    assert core in path.read_bytes()
    assert load_plain_pickle(path).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_load_plain_pickle__plain_values_come_back(path, protocol):
    table = {"a": [1, 2.5, None, True], b"b": (b"\xff\x00", "ä"), 3: {"x": []}}
    path.write_bytes(pickle.dumps(table, protocol=protocol))
    assert load_plain_pickle(path) == table


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (print, "builtins.print"),
        (_calls(eval, "1 + 1"), "builtins.eval"),
        (Fraction, "fractions.Fraction"),
        (np.linspace, "numpy.linspace"),
    ],
)
def test_load_plain_pickle__refuses_other_names(path, protocol, value, asked):
    path.write_bytes(pickle.dumps({"data": value}, protocol=protocol))
    with pytest.raises(ValueError, match="asks for") as error:
        load_plain_pickle(path)
    module = "__builtin__" if protocol < 3 else "builtins"  # what the file says
    assert str(error.value) == (
        f"`{path}` must hold only arrays, lists, strings, numbers and dicts, but asks "
        f"for {asked.replace('builtins', module)}. {TRUSTED}"
    )


@pytest.mark.parametrize("command", ["touch marker", "echo > marker"])
def test_load_plain_pickle__runs_nothing(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.")
    with pytest.raises(ValueError, match="asks for") as error:
        load_plain_pickle(path)
    assert str(error.value) == (
        f"`{path}` must hold only arrays, lists, strings, numbers and dicts, but asks "
        f"for os.system. {TRUSTED}"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([{}, []], dtype=object), "object"),
        (np.array(["ab", "c"]), "<U2"),
        (np.zeros(2, dtype=[("x", "u1")]), "|V1"),
    ],
    ids=["objects", "strings", "records"],
)
def test_load_plain_pickle__refuses_arrays_of_anything_but_numbers(
    path, protocol, array, dtype
):
    path.write_bytes(pickle.dumps([array], protocol=protocol))
    with pytest.raises(ValueError, match="dtype") as error:
        load_plain_pickle(path)
    assert str(error.value) == (
        f"`{path}` must hold arrays of numbers, but one is of dtype "
        f"{np.dtype(dtype)}. {TRUSTED}"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "EOFError: Ran out of input"),
        (
            pickle.dumps(np.arange(6, dtype="u1"), 2).replace(
                b"K\x06\x85", b"K\x07\x85"
            ),
            "ValueError: 6 bytes do not fill an array of shape (7,) and dtype uint8",
        ),
        (
            b"cnumpy.core.numeric\n_frombuffer\n(K\x08cnumpy\ndtype\n(U\x02u1tR"
            b"K\x08\x85U\x01CtR.",
            "TypeError: an array must be given as bytes, but is int",
        ),
        (
            b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.",
            "ValueError: bytes must be encoded as latin1, but are 'hex'",
        ),
    ],
    ids=["empty", "shape", "number for bytes", "codec"],
)
def test_load_plain_pickle__broken_files(path, content, reason):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read") as error:
        load_plain_pickle(path)
    assert str(error.value) == (
        f"`{path}` must be a pickle file, but cannot be read ({reason}). "
        "Fetch it again."
    )


def test_load_plain_pickle__cannot_change_what_answers_it(path):
    """The rest of the sentence is Python's, and differs between its versions."""
    path.write_bytes(b"c_codecs\nencode\nN}U\x0c__defaults__)s\x86b.")
    with pytest.raises(ValueError, match="cannot be read") as error:
        load_plain_pickle(path)
    assert str(error.value).startswith(
        f"`{path}` must be a pickle file, but cannot be read (AttributeError: 'method' "
        "object has no attribute '__defaults__'"
    )


def test_load_plain_pickle__cut_or_damaged_files_give_the_one_sentence(path):
    """Every truncation, and every byte replaced, ends in data or in a ValueError."""
    table = {"data": np.arange(6, dtype="u1"), "labels": [1, 2]}
    whole = pickle.dumps(table, protocol=2)
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole[:i] + b"\x93" + whole[i + 1 :] for i in range(len(whole))]
    sentences = set()
    for content in damaged:
        path.write_bytes(content)
        try:
            load_plain_pickle(path)
        except ValueError as error:
            sentences.add(str(error))
    assert all(sentence.startswith(f"`{path}` must ") for sentence in sentences)
