"""Arguments and methods of torch's DistributedDataParallel, in programs written for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_once
from small_graphs import attempt, cut, small_graph
from torch.nn.parallel import DistributedDataParallel as Torchs
from torch_geometric.nn import GCNConv

import pyg_sar

HARMLESS: list[dict[str, Any]] = [
    {'output_device': None},
    {'bucket_cap_mb': None, 'mixed_precision': None, 'device_mesh': None},
    {'output_device': 0, 'dim': 0, 'init_sync': True, 'check_reduction': False},
    {'find_unused_parameters': True, 'static_graph': True, 'gradient_as_bucket_view': True},
]


@pytest.mark.parametrize('options', HARMLESS)
def test_harmless_options(options: dict[str, Any]) -> None:
    pyg_sar.DistributedDataParallel(GCNConv(2, 2), **options)


def test_others_are_named() -> None:
    with pytest.raises(TypeError, match=r"'mixed_precision' of torch's .* leave it out"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), mixed_precision=torch.float16)
    with pytest.raises(TypeError, match="'dim' of torch's"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), dim=1)
    with pytest.raises(TypeError, match="no option 'mod'; do you mean mode"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), mod='one_shot')


class _Joins(GCNConv):
    def join(self) -> str:
        return 'own'


def test_methods() -> None:
    model = pyg_sar.DistributedDataParallel(GCNConv(2, 2))
    for name in ('join', 'register_comm_hook'):
        assert callable(getattr(Torchs, name))
        with pytest.raises(ValueError, match=rf"'{name}' of torch's .*: leave it out"):
            getattr(model, name)(None)
    assert model.module is model
    assert pyg_sar.DistributedDataParallel(_Joins(2, 2)).join() == 'own'
    with pytest.raises(AttributeError, match='no_such'):
        _ = model.no_such


def _two_threads(root: str) -> list[str]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    models = [pyg_sar.DistributedDataParallel(GCNConv(6, 4).double()) for _ in range(2)]
    found: list[str] = []

    def train(model: torch.nn.Module) -> None:
        def steps() -> None:
            for _ in range(200):
                model(data.x, data.edge_index).square().mean().backward()

        found.append(attempt(steps))

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_threads_of_one_rank(tmp_path: Path) -> None:
    root = cut(small_graph(), 2, tmp_path / 'parts')
    found = [text for of_rank in run_once(_two_threads, 2, str(root)) for text in of_rank]
    assert any('one thread of a rank computes on rows' in text for text in found), found
    assert 'no error' not in found
