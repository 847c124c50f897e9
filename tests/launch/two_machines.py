"""Runs a command on two machines of a network, as a program inside of ``networks.ALONE``.

The word MACHINE of the command is 0 on the one and 1 on the other; they are 10.7.0.1 and 10.7.0.2.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from networks import connect, make_network
from started import start

WAIT = 'echo there; read -r _; exec "$@"'


def main(command: list[str]) -> int:
    """Prints what machine 0 prints, and what both say; the exit status is that of both."""
    make_network()
    words = [[word.replace('MACHINE', str(i)) for word in command] for i in range(2)]
    machines = [start(['unshare', '-n', 'sh', '-c', WAIT, 'sh', *each]) for each in words]
    try:
        for i, machine in enumerate(machines):
            assert machine.stdout is not None
            assert machine.stdout.readline() == 'there\n'  # in its namespace
            connect(machine.pid, f'v{i}', f'10.7.0.{i + 1}')
        with ThreadPoolExecutor() as pool:
            said = [*pool.map(lambda machine: machine.communicate('go\n', 180), machines)]
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    print(said[0][0], end='')
    print(*(err for _, err in said), end='', file=sys.stderr)
    return max(abs(machine.returncode) for machine in machines)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
