"""Makes the batches of an epoch, round after round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from torch_geometric.data import Data, HeteroData

from pyg_sar.comm import count_ranks
from pyg_sar.monitor import say
from pyg_sar.rows.attach import as_local
from pyg_sar.sampling.arguments import Fans
from pyg_sar.sampling.attributes import AttributeRows
from pyg_sar.sampling.batch import make_batch
from pyg_sar.sampling.cache import Cache
from pyg_sar.sampling.graph import LocalGraph
from pyg_sar.sampling.rounds import Round
from pyg_sar.sampling.seeds.seeds import Seeds

_logger = logging.getLogger(__name__)

ROUND = 12
"""Batches that ranks sample together: so many times fewer messages."""


class Sampler:
    """All that a thread needs to make batches."""

    def __init__(
        self,
        data: Data | HeteroData,
        graph: LocalGraph,
        fans: Fans,
        seeds: Seeds,
        cache: Cache | None,
    ) -> None:
        self.data, self.graph, self.fans, self.seeds, self.cache = data, graph, fans, seeds, cache

    def batches(
        self, attributes: AttributeRows, epoch: int, numbers: range, is_wanted: Callable[[], bool]
    ) -> Iterator[Data | HeteroData]:
        """Batches of an epoch, while a rank wants them (collective in every round)."""
        order, cache = self.seeds.order(epoch), self.cache
        nothing = [part[:0] for part in order]
        before = (0, 0) if cache is None else (cache.num_read, cache.num_found)
        of_round = ROUND if self.graph.world_size > 1 else 1
        for start in range(numbers.start, numbers.stop, of_round):
            own = is_wanted()
            if not count_ranks(f'sampling batch {start} of epoch {epoch}', own):
                return
            asked = range(start, min(start + of_round, numbers.stop))
            seeds = self.seeds.of_batches(order if own else nothing, epoch, asked)
            sampled = Round(self.graph, attributes, self.fans, seeds, cache)
            data = as_local(self.data)
            for number in range(len(asked)):
                if is_wanted():
                    yield make_batch(data, sampled, number)
            del sampled
        if cache is not None:
            read, found = cache.num_read - before[0], cache.num_found - before[1]
            text = f'epoch {epoch}: {found} of {read} rows of other ranks were in the cache'
            say(_logger, logging.INFO, text)
