"""Opening a service and listening."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tailshift.estimators import SitePriors

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")

from tailshift.serving import server

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
Connect = Callable[..., Any]


def test_open__a_book_of_other_classes(connect: Connect) -> None:
    with pytest.raises(ValueError, match="book") as error:
        connect(held_out=None, book=SitePriors(["kea", "kiwi"], [0.5, 0.5]))
    assert str(error.value) == (
        "`book` must have the 10 classes of the model in their order, but has 2 that "
        "differ from them."
    )


def test_serve__beyond_this_machine_needs_a_token(connect: Connect) -> None:
    with pytest.raises(ValueError, match="token") as error:
        server.serve(connect(held_out=None).service, host="0.0.0.0")
    assert str(error.value) == (
        "`token` must be set to listen beyond this machine, but `host` is 0.0.0.0. Set "
        "TAILSHIFT_TOKEN."
    )


def test_serve__a_port_that_is_taken(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="port") as error:
            server.serve(connect(held_out=None).service, port=port)
    assert str(error.value) == (
        f"`port` must be free to listen on, but 127.0.0.1:{port} is not ([Errno 98] "
        f"Address already in use (while attempting to bind on address ('127.0.0.1', "
        f"{port})))."
    )
