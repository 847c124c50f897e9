"""Runs a command on two machines of a network, which are network namespaces.

unshare -Urn python tests/launch/two_machines.py COMMAND ...

The word MACHINE of the command is 0 on the one and 1 on the other; they are 10.7.0.1 and 10.7.0.2.
"""

from __future__ import annotations

import subprocess
import sys


def main(command: list[str]) -> int:
    """Prints what machine 0 prints; the exit status is that of both."""
    _ip('link set lo up')
    _ip('link add br0 type bridge')
    _ip('link set br0 up')
    machines = [_machine(i, [w.replace('MACHINE', str(i)) for w in command]) for i in range(2)]
    try:
        for machine in machines:
            assert machine.stdin is not None
            machine.stdin.write('go\n')
            machine.stdin.flush()
        text, _ = machines[0].communicate(timeout=180)
        machines[1].communicate(timeout=60)
        print(text, end='')
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    return max(abs(machine.returncode) for machine in machines)


def _machine(i: int, command: list[str]) -> subprocess.Popen[str]:
    wait = 'echo there; read -r _; exec "$@"'
    machine = subprocess.Popen(
        ['unshare', '-n', 'sh', '-c', wait, 'sh', *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert machine.stdout is not None
    assert machine.stdout.readline() == 'there\n'  # in its namespace
    _ip(f'link add v{i} type veth peer name eth0 netns {machine.pid}')
    _ip(f'link set v{i} master br0 up')
    for line in (f'addr add 10.7.0.{i + 1}/24 dev eth0', 'link set eth0 up', 'link set lo up'):
        _run(f'nsenter -t {machine.pid} -n ip {line}')
    return machine


def _ip(arguments: str) -> None:
    _run(f'ip {arguments}')


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
