"""Norms whose statistics are those of all ranks' rows, in the place of PyG's and torch's own."""

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

__all__ = [
    'GlobalBatchNorm',
    'GlobalDiffGroupNorm',
    'GlobalGraphNorm',
    'GlobalGraphSizeNorm',
    'GlobalHeteroBatchNorm',
    'GlobalInstanceNorm',
    'GlobalLayerNorm',
    'GlobalMeanSubtractionNorm',
    'GlobalNorm',
    'GlobalPairNorm',
    'GlobalPyGBatchNorm',
    'global_form',
]
