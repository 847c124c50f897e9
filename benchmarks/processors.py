"""Figures of several processors side by side: what a processor is called, and a column for it."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DESIGNS = (  # as Linux has them: arch/x86/kernel/cpu/amd.c, arch/x86/include/asm/intel-family.h
    ('AuthenticAMD', 23, range(0x00, 0x30), 'Zen'),
    ('AuthenticAMD', 23, range(0x30, 0x50), 'Zen 2'),
    ('AuthenticAMD', 25, range(0x00, 0x10), 'Zen 3'),
    ('AuthenticAMD', 25, range(0x10, 0x20), 'Zen 4'),
    ('AuthenticAMD', 25, range(0x20, 0x60), 'Zen 3'),
    ('AuthenticAMD', 25, range(0x60, 0x80), 'Zen 4'),
    ('AuthenticAMD', 25, range(0xA0, 0xB0), 'Zen 4'),
    ('AuthenticAMD', 26, range(0x00, 0x30), 'Zen 5'),
    ('AuthenticAMD', 26, range(0x40, 0x50), 'Zen 5'),
    ('AuthenticAMD', 26, range(0x60, 0x80), 'Zen 5'),
    ('GenuineIntel', 6, (0x4F,), 'Broadwell'),
    ('GenuineIntel', 6, (0x55,), 'Skylake or Cascade Lake'),
    ('GenuineIntel', 6, (0x6A, 0x6C), 'Ice Lake'),
    ('GenuineIntel', 6, (0x8F,), 'Sapphire Rapids'),
    ('GenuineIntel', 6, (0xCF,), 'Emerald Rapids'),
    ('GenuineIntel', 6, (0xAD, 0xAE), 'Granite Rapids'),
)


def processor(cpuinfo: Path = Path('/proc/cpuinfo')) -> str:
    """What the processor is called, such as ``'AMD EPYC 7763'`` or ``'AMD EPYC, Zen 5'``.

    Virtual machines often hide the number in the name; its design stands there instead.
    """
    text = cpuinfo.read_text() if cpuinfo.exists() else ''
    fields = dict(re.findall(r'^(\S.*?)\s*: *(.*)$', text, re.MULTILINE))
    if 'model name' not in fields:
        return platform.processor() or platform.machine()
    spare = r'\((R|TM)\)|@.*|\bCPU\b|(\d+-Core )?Processor'
    name = ' '.join(re.sub(spare, ' ', fields['model name'], flags=re.IGNORECASE).split())
    if re.search(r'\d{3}', name) or 'cpu family' not in fields:
        return name
    family, model = int(fields['cpu family']), int(fields['model'])
    for vendor, of_family, models, design in _DESIGNS:
        if (vendor, of_family) == (fields['vendor_id'], family) and model in models:
            return f'{name}, {design}'
    return f'{name}, family {family}, model {model}'


def processor_of(report: dict[str, Any]) -> str:
    """The processor on which a report was measured."""
    return str(report['environment'].get('processor', 'not recorded'))


def with_processor(text: str, name: str) -> str:
    """The text with a first column in each of its tables; its first row names the processor."""
    paragraphs = text.split('\n\n')
    return '\n\n'.join(_with_column(p, name) if _is_table(p) else p for p in paragraphs)


def together(texts: Sequence[str]) -> str:
    """One text of several: tables of all rows if nothing else differs, else one after another."""
    paragraphs = [text.split('\n\n') for text in texts]
    heads = [[_head(paragraph) for paragraph in of] for of in paragraphs]
    if any(other != heads[0] for other in heads):
        return '\n\n'.join(filter(None, texts))
    return '\n\n'.join(
        head + ''.join(paragraph.removeprefix(head) for paragraph in same)
        for head, *same in zip(heads[0], *paragraphs, strict=True)
    )


def _is_table(paragraph: str) -> bool:
    return paragraph.startswith('|')


def _head(paragraph: str) -> str:
    """A table without its rows; other paragraphs as they are."""
    return '\n'.join(paragraph.split('\n')[:2]) if _is_table(paragraph) else paragraph


def _with_column(table: str, name: str) -> str:
    header, rule, first, *rows = table.split('\n')
    lines = [f'| processor {header}', f'|---{rule}', f'| {name} {first}']
    return '\n'.join([*lines, *(f'|  {row}' for row in rows)])
