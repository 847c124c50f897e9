"""What moves between ranks: the only room that communicates features."""

from pyg_sar.comm.buffers import Rows
from pyg_sar.comm.exchange import Exchange, Request
from pyg_sar.comm.gradient_return import GradientReturn
from pyg_sar.comm.group import (
    agree,
    all_ranks,
    all_reduce_sum,
    check_equal,
    exchange_group,
    is_distributed,
    least_of_ranks,
    raise_together,
)
from pyg_sar.comm.reverse import EdgeMove, Reversed, reverse
from pyg_sar.comm.sum import max_over_ranks, sum_over_ranks

__all__ = [
    'EdgeMove',
    'Exchange',
    'GradientReturn',
    'Request',
    'Reversed',
    'Rows',
    'agree',
    'all_ranks',
    'all_reduce_sum',
    'check_equal',
    'exchange_group',
    'is_distributed',
    'least_of_ranks',
    'max_over_ranks',
    'raise_together',
    'reverse',
    'sum_over_ranks',
]
