"""The command ``pyg-sar info [PARTS]``: what a folder of parts holds, or what is installed."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from pyg_sar.launch.fast_start import allocator
from pyg_sar.partition.summary import PartitionSummary, summarize
from pyg_sar.shard.files import file_checksum, folder_files, own_file
from pyg_sar.shard.format import META_FILE
from pyg_sar.shard.meta import Meta, read_meta
from pyg_sar.utils import __version__
from pyg_sar.utils.command_line import checked, printable, text_table
from pyg_sar.utils.installed import installed
from pyg_sar.utils.malloc import has_huge_pages

DESCRIPTION = """Tells what a folder of parts holds and what an epoch exchanges; without PARTS,
which packages, backends and devices there are."""

_EXTRAS = {
    'kaminpar': ('kaminpar', '--method kaminpar'),
    'torch-sparse': ('torch_sparse', 'METIS where pymetis is missing; used by PyG'),
    'pyg-lib': ('pyg_lib', 'METIS where pymetis is missing; used by PyG'),
    'fast': ('numba', 'faster attention on a CPU; an allocator for pyg-sar run; tables'),
    'plot': ('matplotlib', 'pyg-sar info --plot'),
    'ogb': ('ogb', 'datasets of OGB'),
}
"""By extra, the package that it installs and what it is for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds PARTS and the options."""
    add = parser.add_argument
    add('parts', type=Path, metavar='PARTS', nargs='?', help='the folder of a partition')
    add('--verify', action='store_true', help='compare the checksums of all files')
    plot = 'draw how many rows each part reads from each other one'
    add('--plot', type=checked(_png), metavar='FILE.png', help=plot)


def run(arguments: argparse.Namespace, prog: str, words: Sequence[str]) -> int:
    """Prints it; returns the exit code, 1 if a file is not as it was written."""
    if arguments.parts is None:
        if words:
            raise ValueError(f'{words[0]} needs a folder PARTS')
        print(_installed())
        return 0
    meta = read_meta(arguments.parts)
    problems = wrong_files(arguments.parts, meta) if arguments.verify else []
    print(_report(meta))
    for problem in problems:
        print(f'wrong: {printable(problem)}', file=sys.stderr)
    if arguments.verify and not problems:
        print('verified: every file is as it was written')
    if arguments.plot is not None:  # last: it may lack a package
        _draw(summarize(meta), arguments.plot)
        print(f'drew {arguments.plot}')
    return 1 if problems else 0


def _report(meta: Meta) -> str:
    # Anyone may have written the notes: repr has no escapes that a terminal would obey.
    notes = meta.notes
    shown = 'method', 'edge_cut', 'communication_volume'
    options = {k: v for k, v in notes['partition'].items() if v is not None and k not in shown}
    return '\n'.join(
        [
            f'{summarize(meta)}\n',
            f'made with   {options!r}',
            f'command     {notes["command"]!r}',
            f'versions    {notes["versions"]!r}',
            f'partition   {meta.fingerprint}',
        ]
    )


def wrong_files(root: Path, meta: Meta) -> list[str]:
    """A sentence for each file of a partition folder that is changed, missing or foreign."""
    problems = []
    if not meta.is_unchanged:
        problems.append(f"'{root / META_FILE}' was changed after it was written")
    present = folder_files(root)
    problems += [f"'{root / name}' is missing" for name in sorted({*meta.checksums} - {*present})]
    for name in present:
        path = root / name
        if name not in meta.checksums:
            problems.append(f"'{path}' is not a file of this partition")
            continue
        try:
            if file_checksum(own_file(root, path)) != meta.checksums[name]:
                problems.append(f"'{path}' was changed after it was written")
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return problems


def _png(text: str) -> Path:
    if Path(text).suffix != '.png':
        raise ValueError(f'expected a file that ends in .png (got {text!r})')
    return Path(text)


def _draw(summary: PartitionSummary, path: Path) -> None:
    """Draws the rows exchanged as a PNG; a ValueError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ValueError(
            f"a picture needs the package 'matplotlib' (got: {error}); "
            "install it with pip install 'pyg_sar[plot]'"
        ) from error
    figure = Figure(layout='constrained')
    axes = figure.subplots()
    image = axes.imshow(summary.halo_rows, cmap='Blues', vmin=0)
    figure.colorbar(image, label='rows exchanged per layer')
    axes.set(xlabel='sent by part', ylabel='read by part')
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format='png')


def _installed() -> str:
    packages = ('torch', 'torch_geometric', 'numpy', 'pymetis')
    has_devices = torch.cuda.is_available()
    backends = {
        'gloo': dist.is_gloo_available(),
        'nccl': dist.is_nccl_available() and has_devices,
        'mpi': dist.is_mpi_available(),
    }
    extras = [
        (extra, (installed(package) or '?') if find_spec(package) else 'not installed', use)
        for extra, (package, use) in _EXTRAS.items()
    ]
    pages = 'yes' if has_huge_pages() else 'no'
    return '\n'.join(
        [
            f'pyg_sar {__version__}',
            f'Python {platform.python_version()}, '
            + ', '.join(f'{name} {installed(name)}' for name in packages),
            f'backends  {", ".join(name for name, is_there in backends.items() if is_there)}',
            f'devices   cpu{f", {torch.cuda.device_count()} x cuda" if has_devices else ""}',
            f'memory    huge pages: {pages}; allocator: {allocator()}',
            text_table([('extra', 'version', 'gives'), *extras], 3),
            "install an extra with pip install 'pyg_sar[EXTRA]'",
        ]
    )
