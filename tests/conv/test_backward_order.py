"""Backward comes to the exchange of a layer before what own rows need alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_graphs import cut, small_graph
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.gradient_return import GradientReturn
from pyg_sar.comm.threads import run_threads


def _order(root: str, log: list[tuple[int, str]]) -> None:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(SAGEConv(data.x.size(1), 4))
    x = data.x.float().requires_grad_()
    conv.lin_r.weight.register_hook(lambda grad: log.append((pyg_sar.comm.rank(), 'own rows')))
    conv(x, data.edge_index).sum().backward()


def test_own_rows_come_last(tmp_path: Path, monkeypatch: Any) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    log: list[tuple[int, str]] = []
    finish = GradientReturn.finish

    def noting(returned: GradientReturn) -> Any:
        log.append((pyg_sar.comm.rank(), 'exchange'))
        return finish(returned)

    monkeypatch.setattr(GradientReturn, 'finish', noting)
    run_threads(_order, 2, root, log)
    for rank in range(2):
        assert [what for of, what in log if of == rank] == ['exchange', 'own rows']
