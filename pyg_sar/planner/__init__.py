"""Predicts memory, traffic and time of training before anything is loaded."""

from pyg_sar.planner.attention import AttentionPrediction, predict_attention
from pyg_sar.planner.prediction import Planner, Prediction, RankPrediction, predict
from pyg_sar.planner.rehearsal import Job
from pyg_sar.planner.sampled import SampledPrediction, predict_batches
from pyg_sar.planner.statistics import Statistics, by_hand, from_counts, read_statistics
