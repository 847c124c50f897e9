"""Memory, traffic and time of training, by a rehearsal on made-up shards of a folder's counts."""

from pyg_sar.planner.prediction import Prediction, plan
