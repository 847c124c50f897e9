"""Learned rows of a rank's own nodes: parts of one table over all ranks."""

from pyg_sar.own_rows.node_embedding import NodeEmbedding
