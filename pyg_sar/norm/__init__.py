"""Norms with the statistics of all ranks' rows or of a batch, in place of PyG's and torch's."""

from pyg_sar.norm.batch import GlobalBatchNorm, GlobalDiffGroupNorm, GlobalPyGBatchNorm
from pyg_sar.norm.convert import GlobalNorm, global_form
from pyg_sar.norm.groups import (
    GlobalGraphNorm,
    GlobalGraphSizeNorm,
    GlobalHeteroBatchNorm,
    GlobalInstanceNorm,
    GlobalLayerNorm,
    GlobalMeanSubtractionNorm,
    GlobalPairNorm,
)
from pyg_sar.norm.running import RunningStatistics
from pyg_sar.norm.whose_rows import edges_here, edges_in, note_edges_of
