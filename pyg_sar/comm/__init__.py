"""Communication between ranks: no other package sends features."""

from pyg_sar.comm.agreed import Agreed
from pyg_sar.comm.buffers import Rows
from pyg_sar.comm.collectives import (
    agree,
    all_gather_alike,
    all_ranks,
    all_reduce_sum,
    all_to_all,
    all_to_all_counts,
    are_alike,
    await_device,
    broadcast,
    check_arrived,
    check_equal,
    count_ranks,
    differ,
    exchange_bytes,
    least_of_ranks,
    odd_and_usual,
    on_rank_0,
    raise_together,
    sum_over_ranks,
    together,
)
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.exchange import Exchange, Request, exchange_of, lent_to_another, with_halo_ids
from pyg_sar.comm.faults.errors import ExchangeError, collective, end_in_a_line, in_call, in_layer
from pyg_sar.comm.functions import communicates, once_differentiable, torch_apply
from pyg_sar.comm.gradient_return import GradientReturn
from pyg_sar.comm.ranks import (
    as_timedelta,
    cache_of,
    check_own,
    chosen,
    current,
    is_distributed,
    left_by,
    open_lane,
    rank,
    set_debug,
    set_timeout,
    takes_turns,
    world_size,
)
from pyg_sar.comm.reshard.reverse_edges import EdgeMove, Reversed, reverse
