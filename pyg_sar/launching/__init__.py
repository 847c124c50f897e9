"""Starts the processes of a training, and joins them under every launcher."""

from pyg_sar.launching.environment import launched
from pyg_sar.launching.init import Process, init
from pyg_sar.launching.launch import launch
