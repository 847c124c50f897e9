"""Profiles the time, the rows and the memory of an epoch, layer by layer."""

from pyg_sar.profiling.profile import Profile, profile
from pyg_sar.profiling.records import LayerProfile, Summary
