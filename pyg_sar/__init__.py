"""Distributed full-batch training of PyTorch Geometric models, exactly, on a partitioned graph.

What most programs need is here, imported when it is first used; what is used less is in
:mod:`pyg_sar.partition` and :mod:`pyg_sar.loader`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyg_sar.utils import command_line, malloc  # noqa: F401 - before torch reads what it sets

# isort: split
import pyg_sar.launch  # noqa: F401 - the room, before `pyg_sar.launch` is the function
from pyg_sar.utils import __version__ as __version__

if TYPE_CHECKING:
    from pyg_sar.checkpoint.load import load_checkpoint
    from pyg_sar.checkpoint.row_files import load_rows, save_rows
    from pyg_sar.checkpoint.save import save_checkpoint
    from pyg_sar.comm.errors import ExchangeError
    from pyg_sar.launch.in_turns.run import run_in_turns
    from pyg_sar.launch.init import init
    from pyg_sar.launch.launch import launch
    from pyg_sar.launch.profile import profile
    from pyg_sar.loader.link_neighbor_loader import LinkNeighborLoader
    from pyg_sar.loader.neighbor_loader import NeighborLoader
    from pyg_sar.nn.data_parallel import DistributedDataParallel
    from pyg_sar.nn.node_embedding import NodeEmbedding
    from pyg_sar.nn.sar_conv import SARConv
    from pyg_sar.partition.partition_graph import partition_graph
    from pyg_sar.rows.from_data import gather, local
    from pyg_sar.rows.load import load_shard
    from pyg_sar.rows.negative_sampling import negative_sampling
    from pyg_sar.rows.restrict import restrict

_HOMES = {
    'DistributedDataParallel': 'nn.data_parallel',
    'ExchangeError': 'comm.errors',
    'LinkNeighborLoader': 'loader.link_neighbor_loader',
    'NeighborLoader': 'loader.neighbor_loader',
    'NodeEmbedding': 'nn.node_embedding',
    'SARConv': 'nn.sar_conv',
    'gather': 'rows.from_data',
    'init': 'launch.init',
    'launch': 'launch.launch',
    'load_checkpoint': 'checkpoint.load',
    'load_rows': 'checkpoint.row_files',
    'load_shard': 'rows.load',
    'local': 'rows.from_data',
    'negative_sampling': 'rows.negative_sampling',
    'partition_graph': 'partition.partition_graph',
    'profile': 'launch.profile',
    'restrict': 'rows.restrict',
    'run_in_turns': 'launch.in_turns.run',
    'save_checkpoint': 'checkpoint.save',
    'save_rows': 'checkpoint.row_files',
}
_ROOMS = ('checkpoint', 'comm', 'loader', 'nn', 'ops', 'partition', 'rows', 'shard', 'utils')

__all__ = [
    'DistributedDataParallel',
    'ExchangeError',
    'LinkNeighborLoader',
    'NeighborLoader',
    'NodeEmbedding',
    'SARConv',
    'gather',
    'init',
    'launch',
    'load_checkpoint',
    'load_rows',
    'load_shard',
    'local',
    'negative_sampling',
    'partition_graph',
    'profile',
    'restrict',
    'run_in_turns',
    'save_checkpoint',
    'save_rows',
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f'pyg_sar.{name}')
    if name not in _HOMES:
        raise AttributeError(f"module 'pyg_sar' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f'pyg_sar.{_HOMES[name]}'), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


del globals()['launch']
if not command_line.IS_COMMAND:
    import_module('pyg_sar.utils.installed')  # torch and PyG, faster than the program would
if os.environ.get('PYG_SAR_LOG'):
    import_module('pyg_sar.utils.log').set_log_by_environment()
