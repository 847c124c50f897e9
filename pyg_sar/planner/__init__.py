"""Predicts memory, traffic and time of training by a rehearsal on small made-up shards."""

from pyg_sar.planner.prediction import Prediction, plan
