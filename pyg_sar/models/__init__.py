"""PyG models that look at all nodes beside their convs, made right on a cut graph."""

from pyg_sar.models.convert import decoders_in, make_global, why_not_global
