"""What the README says works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from example_programs import run
from graphs import two_communities

README = (Path(__file__).parents[2] / 'README.md').read_text(encoding='utf-8')


@pytest.mark.slow
def test_the_ten_lines(tmp_path: Path) -> None:
    commands = re.search(r'## Ten lines of use\s+```bash\n(.*?)```', README, re.DOTALL)
    program = re.search(r'<!-- readme-example -->\n```python\n(.*?)```', README, re.DOTALL)
    assert commands is not None
    assert program is not None
    partition, launch = (line.split('#')[0] for line in commands[1].splitlines())

    data = two_communities(40)
    data.x, data.y = data.x.float(), data.y % 4
    file = tmp_path / 'examples' / 'data' / 'wordnet_noun.npz'  # a small one in its place
    file.parent.mkdir(parents=True)
    np.savez(file, **{name: data[name].numpy() for name in ('edge_index', 'x', 'y')})
    # Into a file each: the lines of several ranks may run into one another on stdout.
    note = "open(f'loss-{torch.distributed.get_rank()}', 'w').write(repr(loss.item()))\n"
    (tmp_path / 'train.py').write_text(program[1] + note)

    words = shlex.split(partition)
    assert words[0] == 'pyg-sar'
    run('-m', 'pyg_sar', *words[1:], folder=tmp_path)
    words = shlex.split(launch)
    assert words[:2] == ['pyg-sar', 'run']
    run('-m', 'pyg_sar', 'run', '--standalone', *words[2:], folder=tmp_path)
    losses = [path.read_text() for path in tmp_path.glob('loss-*')]
    assert len(losses) == 4
    assert len(set(losses)) == 1
    assert float(losses[0]) < 1.0
