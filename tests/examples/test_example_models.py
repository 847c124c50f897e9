"""Models of examples give, on any number of ranks, what plain PyG or one rank gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from example_programs import EXAMPLES, example, run, torchrun
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE
from torch_geometric.utils import to_undirected

import pyg_sar

SIZE = 7


def _losses(root: str | None) -> list[float]:
    mesh = example('mesh')
    torch.manual_seed(0)
    model = mesh.MeshGraphNet(8, 3).double()
    data: Any = mesh.drawn(SIZE) if root is None else pyg_sar.load_shard(root)
    if root is not None:
        model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pos, edge_attr, losses = data.pos.double(), data.edge_attr.double(), []
    for step in range(4):
        now, then = mesh.field(pos, 0.1 * step), mesh.field(pos, 0.1 * step + 0.1)
        loss = F.mse_loss(model(now, data.edge_index, edge_attr), then - now)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_losses_of_plain_pyg(tmp_path: Path) -> None:
    pyg_sar.partition_graph(example('mesh').drawn(SIZE), 3, tmp_path, method='random')
    want = _losses(None)
    assert want[-1] < want[0]
    for found in run_as_threads(_losses, 3, str(tmp_path)):
        assert found == pytest.approx(want, abs=1e-9, rel=0)


@pytest.mark.slow
def test_it_runs_as_a_program(tmp_path: Path) -> None:
    command = [EXAMPLES / 'mesh.py', tmp_path / 'parts']
    run(*command, '--draw', 12, '--num-parts', 2)
    options = ['--hidden', 8, '--layers', 2, '--steps', 2]
    one, two = (run(*start, *command, *options).splitlines() for start in ([], torchrun(2)))
    assert [line.split()[:2] for line in one] == [['step', '1'], ['step', '2'], ['peak', 'memory']]
    assert one[:2] == two[:2]


def test_answers_are_of_the_last_messages() -> None:
    graph = example('temporal_sampled').draw_graph(60)
    color, ends = graph.x[:, 1].tolist(), graph.edge_index.t().tolist()
    for node, (asked, y) in enumerate(zip(graph.asked.tolist(), graph.y.tolist(), strict=True)):
        for time, answer in zip(asked, y, strict=True):
            got = [
                color[src] for when, (src, dst) in enumerate(ends) if dst == node and when <= time
            ]
            last = got[-3:]
            assert answer == (2 * sum(last) > len(last))


def _trained(root: str, strategy: str) -> list[float]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(2, 8, 2, out_channels=2).double())
    data.x = data.x.double()
    steps = list(example('temporal_sampled').train(model, data, strategy, 2, 16))
    return [value.item() for step in steps for value in step]


@pytest.mark.parametrize('strategy', ['last', pytest.param('uniform', marks=pytest.mark.slow)])
def test_the_same_on_any_number_of_ranks(tmp_path: Path, strategy: str) -> None:
    pyg_sar.partition_graph(
        example('temporal_sampled').draw_graph(200), 4, tmp_path, method='random'
    )
    (want,) = run_as_threads(_trained, 1, str(tmp_path), strategy)
    assert (want[-1] > 0.9) == (strategy == 'last')
    for found in run_as_threads(_trained, 4, str(tmp_path), strategy):
        assert found == pytest.approx(want, abs=1e-9, rel=0)


EPOCHS, NUM_NODES = 3, 60


def _graph() -> Data:
    graph = small_graph(NUM_NODES, 300)
    edge_index = to_undirected(graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]])
    masks = {'train_mask': graph.train_mask, 'test_mask': ~graph.train_mask}
    return Data(x=graph.x, edge_index=edge_index, y=graph.y, **masks)


def _split() -> tuple[Data, dict[str, Tensor]]:
    return example('link_prediction').split_links(_graph())


def _sampled(root: str, links: dict[str, Tensor]) -> list[float]:
    program = example('link_prediction_sampled')
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 2, 5).double())
    steps = list(program.train(model, data, links, EPOCHS, 32, (-1, -1)))
    return [loss.item() for loss, _ in steps] + [s.item() for s in steps[-1][1].values()]


@pytest.mark.slow
def test_links_in_batches_are_the_same_on_any_number_of_ranks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    graph, links = _split()
    root = str(cut(graph, 6, tmp_path / 'parts'))
    want = _sampled(root, links)
    assert want[EPOCHS - 1] < want[0]
    for size in (2, 3):
        for found in run_as_threads(_sampled, size, root, links):
            assert found == pytest.approx(want, abs=1e-9)


NBFNET_SIZE = 120
_CASES = [
    ('nbfnet', 'sum', 'distmult', 1),
    ('nbfnet', 'sum', 'distmult', 2),
    ('nbfnet', 'pna', 'transe', 4),
    ('ultra', 'pna', 'distmult', 2),
    ('ultra', 'sum', 'distmult', 4),
]


def _results(root: str | None, name: str, **kinds: str) -> list[Tensor]:
    nbfnet = example('nbfnet')
    data: Any = nbfnet.drawn(NBFNET_SIZE) if root is None else pyg_sar.load_shard(root)
    torch.manual_seed(0)
    if name == 'nbfnet':
        model = nbfnet.NBFNet(data.num_relations, 6, 2, **kinds).double()
    else:
        model, data = nbfnet.Ultra(6, 2, **kinds).double(), nbfnet.with_meetings(data)
    if root is not None:
        model = pyg_sar.DistributedDataParallel(model)
    loss = nbfnet.loss_of(model, data, data.known[::9])
    loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    score = model(data, (data.edge_index, data.edge_type), data.asked[:, :2])
    (trained, ranks), *_ = nbfnet.train(model, data, 1, 32)
    return [loss.detach(), pyg_sar.gather(score.detach()), trained, ranks, *gradients]


@pytest.mark.parametrize(('name', 'aggr', 'message', 'num_ranks'), _CASES)
def test_the_results_of_plain_pyg(name, aggr, message, num_ranks, tmp_path):
    data = example('nbfnet').drawn(NBFNET_SIZE)
    pyg_sar.partition_graph(data, num_ranks, tmp_path, method='random')
    kinds = {'aggr': aggr, 'message': message}
    want = _results(None, name, **kinds)
    for found in run_as_threads(_results, num_ranks, str(tmp_path), name, **kinds):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-10)


# In float32 Adam's steps make the last bits of two runs a difference of 0.4 % within an epoch.
IN_DOUBLE = """
import runpy, sys, torch
torch.set_default_dtype(torch.float64)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


@pytest.mark.slow
def test_nbfnet_runs_as_a_program(tmp_path: Path) -> None:
    in_double = tmp_path / 'in_double.py'
    in_double.write_text(IN_DOUBLE)
    command = [EXAMPLES / 'nbfnet.py', tmp_path / 'parts']
    run(*command, '--draw', 200, '--num-parts', 2)
    command = [in_double, *command, '--epochs', 2]
    one, two = (run(*start, *command) for start in ([], torchrun(2)))
    pattern = r'epoch +(\d)  loss (\d\.\d{6})  MRR (\d\.\d{4})  hits@10 (\d\.\d{4})\n'
    lines = re.findall(pattern, one)
    assert [line[0] for line in lines] == ['1', '2']
    assert float(lines[-1][2]) > 0.9
    assert re.findall(pattern, two) == lines
