"""Computes activations again in backward instead of keeping them."""

from pyg_sar.recompute.dropout import Draw, Dropout, dropout_arguments
from pyg_sar.recompute.recorder import recompute_activations_of, recomputed_activations
