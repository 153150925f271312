"""Two hosts with addresses of their own train together, lose each other, go on alone.

``make test-hosts`` runs it. A host is a network namespace, so it needs root on Linux;
elsewhere the tests are skipped. A slow link is a pair of TUN devices between which this
process carries the packets, as ``tc netem`` would, which not every kernel has.
"""

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.slow
PORT = 29500


class Host(NamedTuple):
    """A network namespace, its end of the cable and its address."""

    name: str
    link: str
    address: str

    def run(self, *command: str) -> None:
        """Run a command on the host."""
        _run("ip", "netns", "exec", self.name, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Return two namespaces with a cable between them."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed: no network namespaces")
    pair = (
        Host("tailshift-a", "tsa", "10.77.0.1"),
        Host("tailshift-b", "tsb", "10.77.0.2"),
    )
    try:
        for host in pair:
            _run("ip", "netns", "add", host.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made: {error.stderr.strip()}")
    try:
        first, second = pair
        _run("ip", "link", "add", first.link, "type", "veth", "peer", second.link)
        for host in pair:
            _run("ip", "link", "set", host.link, "netns", host.name)
            address = f"{host.address}/24"
            host.run("ip", "address", "add", address, "dev", host.link)
            host.run("ip", "link", "set", host.link, "up")
            host.run("ip", "link", "set", "lo", "up")
        yield pair
    finally:
        for host in pair:
            subprocess.run(["ip", "netns", "delete", host.name], check=False)


def _start(
    hosts: tuple[Host, Host], training: Any, output: Path, epochs: int
) -> list[subprocess.Popen[str]]:
    """Start torchrun on both, as ``docs/distributed.md`` says."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-id", output.name]
    torchrun += ["--rdzv-endpoint", f"{hosts[0].address}:{PORT}"]
    train = ["-m", "tailshift", *training.arguments(output, epochs)]
    processes = []
    for host in hosts:
        known_by = ["--local-addr", host.address]  # no name server knows the hosts
        known_by += ["--rdzv-conf", f"is_host={int(host is hosts[0])}"]
        on_host = ["ip", "netns", "exec", host.name, sys.executable]
        process = subprocess.Popen(
            [*on_host, *torchrun, *known_by, *train],
            env={**training.environment, "GLOO_SOCKET_IFNAME": host.link},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    return processes


def _finish(
    processes: list[subprocess.Popen[str]], seconds: float
) -> list[tuple[int, str]]:
    """Return exit codes and what was written to stderr."""
    texts = []
    for process in processes:
        try:
            texts.append(process.communicate(timeout=seconds)[1])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[1])
    return [(p.returncode, text) for p, text in zip(processes, texts, strict=True)]


def test_train__two_hosts_come_to_the_weights_of_one(
    hosts: tuple[Host, Host], training: Any, tmp_path: Path
) -> None:
    done = _finish(_start(hosts, training, tmp_path / "run", training.short), 300)
    assert [code for code, _ in done] == [0, 0], done
    assert training.difference(tmp_path / "run", training.short) < 1e-8


def test_train__a_host_that_disappears_ends_the_other_and_is_done_without(
    hosts: tuple[Host, Host], training: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    processes = _start(hosts, training, run, training.long)
    training.wait_for(
        (run / "checkpoint.safetensors").is_file, 200, "the first checkpoint"
    )
    hosts[1].run("ip", "link", "set", hosts[1].link, "down")
    start = time.monotonic()
    [(_, said)] = _finish(processes[:1], 120)
    seconds = time.monotonic() - start
    _finish(processes[1:], 0)  # a torchrun that is cut off waits for longer
    hosts[1].run("ip", "link", "set", hosts[1].link, "up")
    assert "error: another process of this training has ended or cannot be " in said
    assert seconds < 90  # twelve, and what torchrun takes to end its processes
    assert not (run / "weights.safetensors").exists()
    training.alone(run, training.long)
    assert training.difference(run, training.long) < 1e-8


class SlowLink(threading.Thread):
    """Carries packets between two TUN devices: each 50 ms late, one in 100 never."""

    delay, loss = 0.05, 0.01
    set_name, is_tun = 0x400454CA, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__(daemon=True)
        self.carried = self.lost = 0
        self._ends, self._is_over = [self._open(name) for name in names], False

    def _open(self, name: str) -> int:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, self.set_name, struct.pack("16sH", name.encode(), self.is_tun))
        return end

    def run(self) -> None:
        chance, late = random.Random(0), deque[tuple[float, int, bytes]]()
        others = dict(zip(self._ends, self._ends[::-1], strict=True))
        while not self._is_over:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else 0.1
            for end in select.select(self._ends, [], [], wait)[0]:
                packet = os.read(end, 65536)
                if chance.random() < self.loss:
                    self.lost += 1
                else:
                    late.append((time.monotonic() + self.delay, others[end], packet))
            while late and late[0][0] <= time.monotonic():
                _, end, packet = late.popleft()
                os.write(end, packet)
                self.carried += 1

    def close(self) -> None:
        """Stop, and let the devices go."""
        self._is_over = True
        self.join()
        for end in self._ends:
            os.close(end)


@contextmanager
def _slow(hosts: tuple[Host, Host]) -> Iterator[tuple[tuple[Host, Host], SlowLink]]:
    """Give two hosts a second, slow link."""
    first, second = hosts
    pair = (Host(first.name, "tsc", "10.78.0.1"), Host(second.name, "tsd", "10.78.0.2"))
    try:
        link = SlowLink((pair[0].link, pair[1].link))
    except OSError as error:
        pytest.skip(f"no slow link can be made: {error}")
    try:
        for host in pair:
            _run("ip", "link", "set", host.link, "netns", host.name)
            address = f"{host.address}/24"
            host.run("ip", "address", "add", address, "dev", host.link)
            host.run("ip", "link", "set", host.link, "up")
        link.start()
        yield pair, link
    finally:
        link.close()


def test_train__a_slow_link_changes_nothing_but_the_time(
    hosts: tuple[Host, Host], training: Any, tmp_path: Path
) -> None:
    with _slow(hosts) as (slow, link):
        done = _finish(_start(slow, training, tmp_path / "run", training.short), 900)
    assert [code for code, _ in done] == [0, 0], done
    assert training.difference(tmp_path / "run", training.short) < 1e-8
    assert link.carried > 500
    assert link.lost > 3
