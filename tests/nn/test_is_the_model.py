"""DistributedDataParallel(model) is the model: its class, keys and name; TorchScript is refused.

Programs that use models in every way: tests/programs/object_programs.py.
"""

from __future__ import annotations

import pytest
import torch
from alike import cut_of
from object_programs import HasModule, Net
from ranks import run_as_threads
from small_graphs import attempt, small_graph

import pyg_sar
from pyg_sar import DistributedDataParallel


def test_the_object_and_its_class() -> None:
    model = Net()
    keys = list(model.state_dict())
    made = DistributedDataParallel(model)
    assert made is model
    assert isinstance(made, DistributedDataParallel)
    assert made.module is made
    assert list(made.state_dict()) == keys
    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        assert getattr(type(made), name) == getattr(Net, name)
    assert type(type(made)(4)) is Net
    assert type(made) is type(DistributedDataParallel(Net()))
    assert made is DistributedDataParallel(made)
    other = HasModule()
    assert DistributedDataParallel(other).module is other._modules['module']


def test_a_model_of_torchscript_is_refused() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning)):  # of torch 2.13, and later ones
        script = torch.jit.script(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r'without torch\.jit'):
        DistributedDataParallel(script)


def _traced(root: str) -> list[str]:
    torch.manual_seed(0)
    data, model = pyg_sar.load_shard(root), DistributedDataParallel(Net().double())
    graph = data.x, data.edge_index
    outcomes = [attempt(torch.jit.trace, each, graph) for each in (model, model.conv)]
    model.loss(data).backward()  # the ranks go on
    return outcomes


@pytest.mark.filterwarnings('ignore::FutureWarning')
def test_a_trace_is_refused_on_all_ranks() -> None:
    for outcomes in run_as_threads(_traced, 3, cut_of(small_graph, 3)):
        for outcome in outcomes:
            assert outcome.startswith("ValueError: 'torch.jit.trace' of rows"), outcome
            assert 'trace the plain model' in outcome
