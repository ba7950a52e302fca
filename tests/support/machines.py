"""Several hosts on this machine, made with Linux namespaces, and a switch that can cut their links.

Each host has its own network, host name, processes, /tmp and /dev/shm:

    with machines(folder, "n0", "n1") as (n0, n1):
        n0.start([...], folder / "log")
        n1.cut()        # from now on nothing comes from it and nothing reaches it, and nobody is notified
        n1.slow()       # its link passes 256 kbit/s
        n1.kill()       # its processes end, as by SIGKILL

``folder`` and the project are on all hosts, as on a shared file system. Hosts find each other by name.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE, wait_for

_NET = "10.77.0"
_NOWHERE = "02:00:00:00:ff:ff"
"""An address that no host has. Packets to it are lost, and the sender gets no notice."""
_OWN = ("/tmp", "/dev/shm")
"""Folders that each host has of its own."""
_UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare")
"""The beginning of a command for a process in new namespaces. The process ends with this one, however this one ends."""
_PREPARE = """
set -e
hostname {name}
mount --make-rprivate /
{mounts}
mount --bind {hosts} /etc/hosts
ip link set lo up
: > {ready}
set +e
sleep infinity &
wait
"""
"""The script of a host's first process. bash reaps processes that have lost their parents."""


_SLOW = "tc qdisc replace dev {device} root tbf rate 256kbit burst 2kb latency 2s"
"""Packets wait in a queue."""


class Switch:
    """Connects the hosts' links. It is a network namespace with a bridge, and exists as long as its process lives."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*_UNSHARE, "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.ip("link add switch type bridge")
        self.ip("link set switch up")

    def ip(self, command: str) -> None:
        """Run a command of ip(8) in the switch's network."""
        self.run(f"ip {command}")

    def run(self, command: str) -> None:
        """Run a command in the switch's network."""
        _run("nsenter", "-t", str(self._process.pid), "-n", *command.split())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Host:
    """One of the hosts.

    Attributes:
        name, address: by which other hosts reach it.
    """

    def __init__(self, folder: Path, switch: Switch, number: int, names: Sequence[str]) -> None:
        self.name = names[number]
        self.address = _address(number)
        self._own_hardware = _hardware(number)
        self._switch = switch
        self._port = f"port{number}"
        own = folder / "hosts" / self.name
        own.mkdir(parents=True)
        hosts = own / "etc-hosts"
        lines = ["127.0.0.1 localhost", *(f"{_address(at)} {name}" for at, name in enumerate(names))]
        hosts.write_text("\n".join(lines) + "\n")
        ready = own / "ready"
        mounts = "\n".join(_mounts(path, own, [ROOT, folder]) for path in _OWN)
        script = _PREPARE.format(name=self.name, mounts=mounts, hosts=hosts, ready=ready)
        spaces = ("--net", "--uts", "--ipc", "--mount", "--pid", "--kill-child", "--mount-proc")
        with (own / "log").open("w") as log:
            self._process = subprocess.Popen([*_UNSHARE, *spaces, "bash", "-c", script], stderr=log)
        assert wait_for(lambda: ready.exists() or self._process.poll() is not None)
        assert ready.exists(), f"host {self.name}: {(own / 'log').read_text()}"
        self._init = int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text())
        self._connect(number, len(names))

    def _connect(self, number: int, count: int) -> None:
        """Connect the host to the switch.

        The host knows the others' hardware addresses, as a router does, so nothing on the way to a host shows that it
        is gone.
        """
        self._switch.ip(f"link add {self._port} type veth peer name eth0 netns {self._init}")
        self._switch.ip(f"link set {self._port} master switch up")
        self.ip(f"link set eth0 address {_hardware(number)}")
        self.ip(f"addr add {self.address}/24 dev eth0")
        self.ip("link set eth0 up")
        for other in range(count):
            if other != number:
                self._find(_address(other), _hardware(other))

    def _find(self, address: str, hardware: str) -> None:
        self.ip(f"neigh replace {address} lladdr {hardware} nud permanent dev eth0")

    def ip(self, command: str) -> None:
        """Run a command of ip(8) on this host."""
        _run(*self._enter(), "ip", *command.split())

    def _enter(self) -> tuple[str, ...]:
        return "nsenter", "-t", str(self._init), "-n", "-u", "-i", "-m", "-p"

    def start(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a program on this host. Its output is written to ``log``."""
        with log.open("a") as output:
            return subprocess.Popen(
                [*self._enter(), *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def output(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program to its end on this host, and return its output."""
        done = subprocess.run(
            [*self._enter(), *command], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.stdout

    def cut(self) -> None:
        """Take the host's link from the switch. All packets from and to the host are lost."""
        self._switch.ip(f"link set {self._port} nomaster")

    def mend(self) -> None:
        """Connect the host's link again."""
        self._switch.ip(f"link set {self._port} master switch")

    def slow(self) -> None:
        """Limit the host's link to 256 kbit/s in each direction. Skips the test if the kernel cannot."""
        try:
            _run(*self._enter(), *_SLOW.format(device="eth0").split())
        except AssertionError as error:
            pytest.skip(f"no slow links here: {error}")
        self._switch.run(_SLOW.format(device=self._port))

    def cut_from(self, other: Host) -> None:
        """Lose all packets between these two hosts. Both still reach the other hosts."""
        for one, to in ((self, other), (other, self)):
            one._find(to.address, _NOWHERE)

    def mend_to(self, other: Host) -> None:
        """Undo `cut_from`."""
        for one, to in ((self, other), (other, self)):
            one._find(to.address, to._own_hardware)

    def kill(self) -> None:
        """End the host's processes at once. Their connections close, and others notice unless the link is cut."""
        if self._process.poll() is None:
            os.kill(self._init, signal.SIGKILL)  # the first process: with it, the kernel ends all others of the host
            self._process.wait()


@contextlib.contextmanager
def machines(folder: Path, *names: str) -> Iterator[list[Host]]:
    """Run hosts with these names during the block, and then kill all their processes.

    Skips the test if hosts cannot be made.
    """
    why = _why_not()
    if why:
        pytest.skip(f"no hosts of our own here: {why}")
    switch = Switch()
    hosts: list[Host] = []
    try:
        hosts.extend(Host(folder, switch, number, names) for number in range(len(names)))
        yield hosts
    finally:
        for host in hosts:
            host.kill()
        switch.close()


def _why_not() -> str:
    """Return why this user or kernel cannot make hosts; empty: it can."""
    missing = [program for program in ("setpriv", "unshare", "nsenter", "ip", "mount") if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed"
    if os.geteuid() != 0:
        return "it takes root"
    probe = (
        "mount -t tmpfs tmpfs /mnt && ip link add probe0 type veth peer name probe1 && ip link add probe2 type bridge"
    )
    done = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "sh", "-c", probe],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() if done.returncode else ""


def _mounts(place: str, own: Path, shared: Sequence[Path]) -> str:
    """Return commands that give a host its own folder at ``place``. Shared folders below it stay as they are."""
    mine = own / place.strip("/").replace("/", "-")
    mine.mkdir()
    lines = []
    if place == "/dev/shm":
        return f"mount -t tmpfs tmpfs {place}"
    for path in shared:
        if path.is_relative_to(place):
            inside = mine / path.relative_to(place)
            inside.mkdir(parents=True)
            lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(inside))}")
    return "\n".join([*lines, f"mount --rbind {shlex.quote(str(mine))} {place}"])


def _address(number: int) -> str:
    return f"{_NET}.{10 + number}"


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{10 + number}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
