"""A team whose processes are programs, such as those of another Python environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any


class ProgramTeam(AbstractContextManager['ProgramTeam']):
    """Programs that do a step for every line they read, and answer by a line of JSON.

    Steps as a :class:`team.Team` does.

    Args:
        commands: One for every rank. Each answers once without being asked: its setup.
        environment: Variables added to the environment.

    Attributes:
        setup: The first answers, by rank.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None
    ) -> None:
        self._logs = [tempfile.TemporaryFile('w+') for _ in commands]  # noqa: SIM115 (closed with the team)
        self._programs = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
            for command, log in zip(commands, self._logs, strict=True)
        ]
        try:
            self.setup = self._receive()
        except BaseException:
            self.close()
            raise

    def step(self, words: str = '') -> list[Any]:
        """Lets every program do one step, by a line with `words`; the answers, by rank."""
        for program in self._programs:
            assert program.stdin is not None
            program.stdin.write(f'{words}\n')
            program.stdin.flush()
        return self._receive()

    def _receive(self) -> list[Any]:
        answers = []
        for rank, (program, log) in enumerate(zip(self._programs, self._logs, strict=True)):
            assert program.stdout is not None
            line = program.stdout.readline()
            if not line:
                log.seek(0)
                text = log.read()[-2000:]
                raise RuntimeError(f'rank {rank} of {len(self._programs)} failed:\n{text}')
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        for program, log in zip(self._programs, self._logs, strict=True):
            program.kill()
            program.communicate()
            log.close()

    def __exit__(self, *_: object) -> None:
        self.close()
