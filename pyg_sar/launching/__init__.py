"""How the processes of a training find each other, whoever has started them."""

from pyg_sar.launching.environment import launched
from pyg_sar.launching.init import Process, init
from pyg_sar.launching.launch import launch
