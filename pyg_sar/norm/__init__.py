"""Norms of batches. On rows of the whole graph a norm is torch's or PyG's own."""

from pyg_sar.norm.batches import SyncBatchNorm, watch_norms
from pyg_sar.norm.running import RunningStatistics

__all__ = ['RunningStatistics', 'SyncBatchNorm', 'watch_norms']
