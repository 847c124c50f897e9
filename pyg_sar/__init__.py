"""Distributed full-batch training of PyTorch Geometric models, exactly, on a partitioned graph.

What most programs need is here; what is used less is in :mod:`pyg_sar.partition`.
"""

from pyg_sar.utils import malloc  # noqa: F401 - before anything imports torch

# isort: split
from pyg_sar.utils import private_names  # noqa: F401 - before anything needs one

# isort: split
from pyg_sar.checkpoint.load import load_checkpoint
from pyg_sar.checkpoint.row_files import load_rows, save_rows
from pyg_sar.checkpoint.save import save_checkpoint
from pyg_sar.comm.errors import ExchangeError
from pyg_sar.launch.in_turns.run import run_in_turns
from pyg_sar.launch.init import Process, init
from pyg_sar.launch.launch import launch
from pyg_sar.launch.profile import profile
from pyg_sar.loader.link_neighbor_loader import LinkNeighborLoader
from pyg_sar.loader.neighbor_loader import NeighborLoader
from pyg_sar.nn.ddp.data_parallel import DistributedDataParallel
from pyg_sar.nn.node_embedding import NodeEmbedding
from pyg_sar.nn.sar_conv import SARConv
from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.rows.from_data import gather, local
from pyg_sar.rows.gather import gather_batches, mean_of_batches, negative_sampling
from pyg_sar.rows.load import load_shard
from pyg_sar.rows.patches.transforms import refuse_on_parts
from pyg_sar.rows.restrict import restrict
from pyg_sar.utils.log import set_log_by_environment
from pyg_sar.utils.version import __version__ as __version__

set_log_by_environment()
refuse_on_parts()

__all__ = [
    'DistributedDataParallel',
    'ExchangeError',
    'LinkNeighborLoader',
    'NeighborLoader',
    'NodeEmbedding',
    'Process',
    'SARConv',
    'gather',
    'gather_batches',
    'init',
    'launch',
    'load_checkpoint',
    'load_rows',
    'load_shard',
    'local',
    'mean_of_batches',
    'negative_sampling',
    'partition_graph',
    'profile',
    'restrict',
    'run_in_turns',
    'save_checkpoint',
    'save_rows',
]
