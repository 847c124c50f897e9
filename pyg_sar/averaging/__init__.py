"""Averages gradients of parameters over the ranks at the end of every backward."""

from pyg_sar.averaging.averager import Averager, average_gradients

__all__ = ['Averager', 'average_gradients']
