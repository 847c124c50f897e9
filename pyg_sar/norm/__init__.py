"""Norms with the statistics of the rows of all ranks, in place of those of PyG and torch."""

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
