"""Distributed full-batch training of PyTorch Geometric models, exactly, on a partitioned graph."""

from pyg_sar.checkpoint import load_checkpoint, save_checkpoint
from pyg_sar.comm import ExchangeError
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.load import load_shard
from pyg_sar.loss import global_mean, global_sum
from pyg_sar.memory import return_freed_memory
from pyg_sar.monitor import set_log_by_environment
from pyg_sar.partitioner import Partitioner, PartitionSummary, partition_graph
from pyg_sar.profiling import Profile, profile
from pyg_sar.restrict import RestrictedLayers, restrict
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.transforms import SIGN, save_node_attrs
from pyg_sar.wrap import wrap

__version__ = '0.1.0'

set_log_by_environment()

__all__ = [
    'SIGN',
    'DistributedDataParallel',
    'ExchangeError',
    'PartitionSummary',
    'Partitioner',
    'Profile',
    'RestrictedLayers',
    'SARConv',
    'ShardEdgeIndex',
    'global_mean',
    'global_sum',
    'load_checkpoint',
    'load_shard',
    'partition_graph',
    'profile',
    'restrict',
    'return_freed_memory',
    'save_checkpoint',
    'save_node_attrs',
    'wrap',
]
