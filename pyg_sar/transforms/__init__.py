"""Transforms of the whole graph: run once before training, results are kept with the shards."""

from pyg_sar.transforms.on_parts import refuse_on_parts
from pyg_sar.transforms.save import save_node_attrs
from pyg_sar.transforms.sign import SIGN

refuse_on_parts()
