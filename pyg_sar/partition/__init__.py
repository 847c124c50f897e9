"""From a graph to shards on disk: METIS, checks, and the files a rank loads."""

from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.partition.summary import PartitionSummary
