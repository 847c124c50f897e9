"""SARConv: computes a PyG conv on a cut graph, on the path that its messages need."""

from pyg_sar.rows.rowwise import declare_rowwise as rowwise
