"""Makes the batches of an epoch, round after round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from torch_geometric.data import Data, HeteroData

from pyg_sar.comm import count_ranks
from pyg_sar.monitor import say
from pyg_sar.rows.attach import as_local
from pyg_sar.sampling.attributes import Attributes
from pyg_sar.sampling.batch import Batches
from pyg_sar.sampling.found import Kept
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.rounds import Fans, Round
from pyg_sar.sampling.seeds.inputs import Inputs

_logger = logging.getLogger(__name__)

ROUND = 12
"""Batches that ranks sample together: so many times fewer messages."""


class Sampler:
    """All that a thread needs to make batches."""

    def __init__(self, data: Data | HeteroData, graph: Graph, fans: Fans, inputs: Inputs) -> None:
        self.data, self.graph, self.fans, self.inputs = data, graph, fans, inputs
        self.kept: Kept | None = None

    def batches(
        self, attributes: Attributes, epoch: int, numbers: range, is_wanted: Callable[[], bool]
    ) -> Iterator[Data | HeteroData]:
        """Batches of an epoch, while a rank wants them (collective in every round)."""
        order = self.inputs.order(epoch)
        nothing, before = [part[:0] for part in order], self._reads()
        of_round = ROUND if self.graph.world_size > 1 else 1
        for start in range(numbers.start, numbers.stop, of_round):
            own = is_wanted()
            if not count_ranks(f'sampling batch {start} of epoch {epoch}', own):
                return
            asked = range(start, min(start + of_round, numbers.stop))
            seeds = self.inputs.of_batches(order if own else nothing, epoch, asked)
            sampled = Round(self.graph, attributes, self.fans, seeds, self.kept)
            batches = Batches(as_local(self.data), attributes, sampled)
            for number in range(len(asked)):
                if is_wanted():
                    yield batches[number]
            del sampled, batches
        if self.kept is not None:
            read, found = (now - then for now, then in zip(self._reads(), before, strict=True))
            text = f'epoch {epoch}: {found} of {read} rows of other ranks were in the cache'
            say(_logger, logging.INFO, text)

    def _reads(self) -> tuple[int, int]:
        """How many rows of other ranks batches have read, and how many of them were kept."""
        return (self.kept.num_read, self.kept.num_found) if self.kept is not None else (0, 0)
