"""Whether published weights can be fetched, told at once.

Without a network the Hub's client asks again and again for a minute, with a line for
each time, before it says so.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies


def hub_host() -> str:
    """Return the name of the machine that weights are fetched from."""
    from huggingface_hub import constants  # here: only where weights are asked for

    return urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT


def hub_is_reachable() -> bool:
    """Say whether this machine knows the way to the Hub: its address, or a proxy."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(hub_host(), 443)
    except OSError:
        return False
    return True


@contextmanager
def offline_hub() -> Iterator[None]:
    """Within the block, take only what was fetched before."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
