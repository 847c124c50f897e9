"""From a graph to shards on disk: METIS, checks, and the files a rank loads."""

from pyg_sar.partitioner.compat import Partitioner
from pyg_sar.partitioner.graph import partition_graph
from pyg_sar.partitioner.summary import PartitionSummary

__all__ = ['PartitionSummary', 'Partitioner', 'partition_graph']
