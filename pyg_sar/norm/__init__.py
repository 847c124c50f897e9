"""Norms whose statistics are those of all ranks' rows, in the place of PyG's and torch's own."""

from pyg_sar.norm.base import GlobalNorm
from pyg_sar.norm.batch import GlobalBatchNorm, GlobalDiffGroupNorm, GlobalPyGBatchNorm
from pyg_sar.norm.convert import global_form
from pyg_sar.norm.graph import (
    GlobalGraphNorm,
    GlobalGraphSizeNorm,
    GlobalInstanceNorm,
    GlobalLayerNorm,
    GlobalMeanSubtractionNorm,
    GlobalPairNorm,
)
from pyg_sar.norm.hetero import GlobalHeteroBatchNorm

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
