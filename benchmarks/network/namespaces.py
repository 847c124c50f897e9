"""Hosts on this machine: network namespaces on a bridge, with links as slow as one says.

A host's link is a pair of virtual interfaces, shaped by a token bucket (``tc tbf``) at both ends:
what the host sends and what it receives, each by itself, as on a full-duplex link. Hosts 0 and 1
have a second one, a path between the two alone, which they take while it is shaped. Linux only, as
root, with iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import AbstractContextManager, ExitStack, suppress

INTERFACE, _PATH = 'eth0', 'eth1'
_SECONDS_OF_BURST = 0.004  # a tick of the kernel's clock may be as long


def missing() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0 or not os.path.isdir('/sys/class/net'):
        return 'network namespaces need Linux and root'
    if not (shutil.which('ip') and shutil.which('tc')):
        return "network namespaces need 'ip' and 'tc' (iproute2)"
    try:
        with Hosts(1) as hosts:
            hosts.shape(1.0)
    except RuntimeError as error:
        return f'network namespaces are not allowed here ({error})'
    return ''


class Hosts(AbstractContextManager['Hosts']):
    """Namespaces that reach each other; all are taken down at the end.

    Args:
        count: How many.

    Raises:
        RuntimeError: If the system does not allow it.
    """

    def __init__(self, count: int) -> None:
        self._prefix = f'sar{os.getpid()}'
        self._names = [f'{self._prefix}-{host}' for host in range(count)]
        with ExitStack() as stack:
            bridge = f'{self._prefix}b'
            _call(f'ip link add {bridge} type bridge')
            stack.callback(_undo, f'ip link del {bridge}')
            _call(f'ip link set {bridge} up')
            for host, name in enumerate(self._names):
                _call(f'ip netns add {name}')
                stack.callback(_undo, f'ip netns del {name}')
                port = self._port(host)
                _call(f'ip link add {port} type veth peer name {INTERFACE} netns {name}')
                stack.callback(_undo, f'ip link del {port}')
                _call(f'ip link set {port} master {bridge} up')
                _call(f'ip -n {name} addr add {_address(host)}/24 dev {INTERFACE}')
                _call(f'ip -n {name} link set {INTERFACE} up')
                _call(f'ip -n {name} link set lo up')
            if count > 1:
                first, second = self._names[:2]
                ends = f'type veth peer name {_PATH} netns {second}'
                _call(f'ip -n {first} link add {_PATH} {ends}')
                for name in (first, second):
                    _call(f'ip -n {name} link set {_PATH} up')
            self._stack = stack.pop_all()

    def command(self, host: int) -> list[str]:
        """What stands before a command to run it on a host."""
        return ['ip', 'netns', 'exec', self._names[host]]

    def shape(self, gigabits: float, host_share: float = 1.0, path_share: float = 1.0) -> None:
        """Gives every link so many gigabits per second, each way.

        Args:
            gigabits: Of a link.
            host_share: What the link of host 0 has of it.
            path_share: What the path between hosts 0 and 1 has of it.
        """
        for host, name in enumerate(self._names):
            bucket = _bucket(gigabits if host else gigabits * host_share)
            _call(f'tc -n {name} qdisc replace dev {INTERFACE} {bucket}')
            _call(f'tc qdisc replace dev {self._port(host)} {bucket}')
        for host, name in enumerate(self._names[:2] if len(self._names) > 1 else ()):
            route = f'{_address(1 - host)}/32 dev {_PATH}'
            _undo(f'ip -n {name} route del {route}')
            if path_share != 1.0:
                _call(f'tc -n {name} qdisc replace dev {_PATH} {_bucket(gigabits * path_share)}')
                _call(f'ip -n {name} route add {route} src {_address(host)}')

    def _port(self, host: int) -> str:
        return f'{self._prefix}p{host}'

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _address(host: int) -> str:
    return f'10.77.0.{host + 1}'


def _bucket(gigabits: float) -> str:
    burst = max(round(gigabits * 1e9 / 8 * _SECONDS_OF_BURST), 1 << 17)
    return f'root tbf rate {round(gigabits * 1e6)}kbit burst {burst} latency 50ms'


def _call(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'{command}: {done.stderr.strip()}')


def _undo(command: str) -> None:
    with suppress(RuntimeError):  # the rest has to be taken down too
        _call(command)
