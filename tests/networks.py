"""Machines of a network, which are network namespaces: for programs inside of :data:`ALONE`."""

from __future__ import annotations

import subprocess

from started import output, run

ALONE = ('unshare', '-Urn')
_TRY = 'ip link add br0 type bridge && ip link add v0 type veth peer name v1'


def why_no_networks() -> str:
    """Why this machine does not permit them; empty if it does."""
    try:
        done = run([*ALONE, 'sh', '-c', _TRY], timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        return f'no network namespaces with veth here ({error})'
    return f'no network namespaces with veth here ({done.stderr})' if done.returncode else ''


def make_network() -> None:
    """A bridge, which has no machine yet."""
    for line in ('link set lo up', 'link add br0 type bridge', 'link set br0 up'):
        ip(line)


def connect(pid: int, name: str, address: str) -> None:
    """A process in a namespace of its own becomes a machine with an address."""
    ip(f'link add {name} type veth peer name eth0 netns {pid}')
    ip(f'link set {name} master br0 up')
    for line in (f'addr add {address}/24 dev eth0', 'link set eth0 up', 'link set lo up'):
        on_machine(pid, f'ip {line}')


def ip(arguments: str) -> None:
    output(['ip', *arguments.split()])


def on_machine(pid: int, command: str) -> None:
    output(['nsenter', '-t', pid, '-n', *command.split()])
