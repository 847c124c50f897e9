"""Readers who do what the tutorials say come to what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import ROOT, Reader, blocks_of, commands_of, one_side

TUTORIALS = [*sorted((ROOT / 'docs' / 'tutorials').glob('*.md')), ROOT / 'docs' / 'integrations.md']


@pytest.mark.slow
@pytest.mark.parametrize('page', TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial(page: Path, tmp_path: Path) -> None:
    Reader(tmp_path).read(page)


def test_programs_of_tutorials_compile() -> None:
    assert len(TUTORIALS) >= 4
    for page in TUTORIALS:
        for block in blocks_of(page.read_text(encoding='utf-8')):
            sides = '-+' if block.language == 'diff' else []
            programs = [one_side(block.text, sign) for sign in sides]
            if block.language == 'python':
                programs.append(block.text)
            for program in programs:
                compile(program, str(page), 'exec')


def test_what_is_done_with_a_block() -> None:
    page = """
<!-- setup: other.md graph.py -->
<!-- file: train.py -->
```python
x = 1
```

```bash
A=1 torchrun --nproc-per-node 2 \\
    train.py  # with a comment
python -m this
```
"""
    program, commands = blocks_of(page)
    assert program.said == {'setup': ['other.md', 'graph.py'], 'file': ['train.py']}
    assert program.text == 'x = 1\n'
    assert commands_of(commands.text) == [
        'A=1 torchrun --nproc-per-node 2      train.py',
        'python -m this',
    ]
    assert one_side(' a\n-b\n+c\n\n d\n', '+') == 'a\nc\n\nd\n'


@pytest.mark.parametrize('text', ['epoch 1  loss 1.25\n', 'epoch 2  loss 1.00\n', ''])
def test_other_output_than_promised_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / 'page.md'
    start = "<!-- file: a.py -->\n```python\nprint('epoch 1  loss 1.001')\n```\n"
    commands = '\n```bash\npython a.py\n```\n\n```text\n'
    page.write_text(f'{start}{commands}epoch 1  loss 1.000\n```\n')
    Reader(tmp_path).read(page)
    page.write_text(f'{start}{commands}{text}```\n')
    with pytest.raises(AssertionError):
        Reader(tmp_path).read(page)
