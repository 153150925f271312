"""The way to published weights: found, or missed without a minute of retries."""

import socket
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from tailshift.models import timm_backbone as hub


def _no_such_name(*args: Any, **settings: Any) -> Any:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)


@pytest.mark.usefixtures("no_proxies")
def test_hub_is_reachable__where_its_name_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example:8080/hub")
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: asked.append(args))
    assert hub.hub_is_reachable()
    assert asked == [("mirror.example", 443)]


@pytest.mark.usefixtures("no_proxies")
def test_hub_is_reachable__not_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _no_such_name)
    assert not hub.hub_is_reachable()


def test_hub_is_reachable__maybe_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _no_such_name)
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert hub.hub_is_reachable()


def test_offline_hub__asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own promise: no request is made, so none is repeated."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub.offline_hub(), pytest.raises(OSError, match="offline mode"):
        huggingface_hub.get_hf_file_metadata("https://huggingface.co/a/b")
    assert constants.HF_HUB_OFFLINE is False
