"""Dropout by ids: the same losses on any number of ranks, and refusals of what cannot be so."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import cut_of
from copied_modules import copied
from few import few
from hetero_graphs import hetero_graph
from on_ranks import on_ranks
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, small_graph
from sum_conv import SumConv
from three_steps import descend
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, dropout_edge, remove_self_loops

import pyg_sar
from pyg_sar.utils import rng

SEED = 5


class Flow(pyg.MessagePassing):
    """Drops messages against the edges, and a median looks at all of them."""

    def __init__(self, aggr: str, flow: str) -> None:
        super().__init__(aggr=aggr, flow=flow)
        self.lin = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(x) + self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return F.dropout(F.dropout(x_j, 0.3, self.training), 0.2, self.training)


class Net(torch.nn.Module):
    """Dropout of rows, as function and as module, and in messages on all paths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [
                pyg.GATConv(6, 4, heads=2, dropout=0.3),
                pyg.TransformerConv(8, 4, heads=2, dropout=0.4, edge_dim=4),
                pyg.GATv2Conv(8, 4, heads=2, dropout=0.2),
                Flow('sum', 'target_to_source'),
                Flow('median', 'source_to_target'),
                pyg.SAGEConv(8, 3),
            ]
        )
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, self.training)
        for i, layer in enumerate(self.layers[:-1]):
            more = (F.dropout(edge_attr, 0.1, self.training),) if i == 1 else ()
            x = self.drop(self.norm(layer(x, edge_index, *more)).relu())
        x = F.dropout(x.unsqueeze(1), 0.25, self.training, inplace=True).squeeze(1)
        return self.layers[-1](x, edge_index)


class Run:
    """A model in training, on all parts of a folder or on those of a rank."""

    def __init__(self, root: str, model: torch.nn.Module | None = None, **options: Any) -> None:
        self.data = pyg_sar.load_shard(root)
        torch.manual_seed(1)
        model = _Plain().double() if model is None else model
        options = {'dropout_seed': SEED, **options}
        self.model = pyg_sar.DistributedDataParallel(model, **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        torch.manual_seed(int(pyg_sar.local(self.data.n_id).sum()))  # another one on every rank

    def __call__(self, model: Any = None) -> Tensor:
        data = self.data
        return (model or self.model)(data.x, data.edge_index, data.edge_attr)

    def loss(self, model: Any = None) -> Tensor:
        return F.cross_entropy(self(model), self.data.y)

    def epochs(self, count: int) -> list[float]:
        return descend(self.loss, self.optimizer, steps=count)


class _Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GATConv(6, 4, heads=3, dropout=0.3), pyg.SAGEConv(12, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        x = F.dropout(x, 0.2, self.training)
        return self.second(F.dropout(self.first(x, edge_index), 0.6, self.training), edge_index)


def _root(num_parts: int) -> str:
    return cut_of(small_graph, num_parts)


def _losses(root: str, **options: Any) -> list[float]:
    torch.manual_seed(1)
    return Run(root, Net().double(), **options).epochs(3)


@pytest.fixture(scope='module')
def expected() -> list[float]:
    return _losses(_root(1))


def _check(found: list[list[float]], expected: list[float]) -> None:
    for losses in found:
        assert len(losses) == len(expected)
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-10


LAYOUTS = [(2, 2), (4, 4), (8, 8), (8, 1), (8, 2), (4, 2)]
MODES = 'one_shot', 'sequential_no_remat'


@pytest.mark.parametrize(
    ('parts', 'ranks', 'mode'),
    [*few(((*each, 'sequential') for each in LAYOUTS), 5), *((2, 2, mode) for mode in MODES)],
)
def test_losses_do_not_depend_on_the_ranks(
    expected: list[float], parts: int, ranks: int, mode: str
) -> None:
    _check(run_as_threads(_losses, ranks, _root(parts), mode=mode), expected)


def test_pieces_of_a_message_draw_what_the_whole_draws(
    expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('pyg_sar.ops.chunks.CHUNK_BYTES', 1)
    monkeypatch.setattr('pyg_sar.ops.chunks.MIN_EDGES', 13)
    monkeypatch.setattr('pyg_sar.nn.dropout._HASHES', 7)
    _check([_losses(_root(2))], expected)


def _saved(root: str, folder: Path, count: int) -> list[float]:
    run = Run(root)
    losses = run.epochs(count)
    pyg_sar.save_checkpoint(folder, run.model, run.optimizer, epoch=count)
    return losses


def _resumed(root: str, folder: Path, count: int) -> list[float]:
    run = Run(root)
    assert pyg_sar.load_checkpoint(folder, run.model, run.optimizer) is not None
    return run.epochs(count)


def test_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    expected = Run(_root(1)).epochs(7)
    _check(run_as_threads(_saved, 4, _root(4), tmp_path, 3), expected[:3])
    _check(run_as_threads(_resumed, 2, _root(8), tmp_path, 4), expected[3:])
    _check([_resumed(_root(1), tmp_path, 4)], expected[3:])


def _gradients(root: str) -> list[Tensor]:
    run = Run(root)
    run.loss().backward()
    return [p.grad for p in run.model.parameters()]


def test_gradients_and_processes() -> None:
    expected = _gradients(_root(1))
    for found in run_ranks(_gradients, 2, _root(2)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_masks_by_hand_in_plain_pyg(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(_root(4))
    plain = copy.deepcopy(run.model.module.state_dict())
    with torch.no_grad():
        run.loss()  # the second step
    found = run()
    data = small_graph()
    model = _Plain().double()
    model.load_state_dict(plain)
    edge_index, _ = add_self_loops(remove_self_loops(data.edge_index)[0], num_nodes=40)
    numbers: dict[tuple[int, int], int] = {}
    ids = []
    for src, dst in edge_index.t().tolist():
        number = numbers[src, dst] = numbers.get((src, dst), -1) + 1
        ids.append(rng.hashed(0, dst, src, number))
    nodes, edges = torch.arange(40), torch.stack(ids)
    # GATConv calls edge_updater, which drops, and propagate: calls 2 and 3.
    rows = iter([(1, nodes), (2, edges), (4, nodes)])

    def by_hand(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
        call, ids = next(rows)
        kept = rng.kept(p, SEED, 1, call, 0, ids, width=x.size(1))
        share = round(p * 2**16) / 2**16
        return x * kept / (1 - share)

    monkeypatch.setattr(F, 'dropout', by_hand)
    out = model(data.x, data.edge_index)
    assert next(rows, None) is None
    torch.testing.assert_close(found, out[run.data.n_id], rtol=1e-12, atol=1e-12)


class _Ones(torch.nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.conv, self.p = pyg.SAGEConv(1, 1), p

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, self.p, self.training), F.dropout(x, self.p, self.training)


@pytest.mark.parametrize('p', [0.1, 0.5, 0.85, 1.0])
def test_rate_and_independence(p: float) -> None:
    data = pyg_sar.load_shard(_root(2))
    ones = torch.ones(40, 5003)  # no multiple of four
    model = pyg_sar.DistributedDataParallel(_Ones(p), dropout_seed=1)
    masks = [mask for _ in range(2) for mask in model(ones, data.edge_index)]
    for mask in masks:
        kept = mask > 0
        bound = 5 * (p * (1 - p) / mask.numel()) ** 0.5
        assert abs(1 - p - kept.double().mean().item()) <= bound + 1e-5
        assert p == 1 or torch.allclose(mask[kept], torch.tensor(1 / (1 - p)), rtol=1e-4)
        row_rates, column_rates = (kept.double().mean(dim) for dim in (1, 0))
        assert (row_rates - 1 + p).abs().max() <= 5 * (p * (1 - p) / 5003) ** 0.5 + 1e-5
        assert (column_rates - 1 + p).abs().max() <= 6 * (p * (1 - p) / 40) ** 0.5 + 1e-5
    for i, a in enumerate(masks if p < 1 else []):  # of two calls in two steps
        for b in masks[:i]:
            both = ((a > 0) & (b > 0)).double().mean().item()
            assert abs(both - (1 - p) ** 2) <= 5 * ((1 - p) ** 2 / a.numel()) ** 0.5
    model.eval()
    assert all(torch.equal(out, ones) for out in model(ones, data.edge_index))


class _Hetero(torch.nn.Module):
    def __init__(self, metadata: Any) -> None:
        super().__init__()
        convs = {
            relation: pyg.GATConv((-1, -1), 4, heads=2, dropout=0.3, add_self_loops=False)
            for relation in metadata[1]
        }
        self.conv = pyg.HeteroConv(convs)
        self.drop, self.out = torch.nn.Dropout(0.4), torch.nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {key: F.dropout(x, 0.2, self.training) for key, x in x_dict.items()}
        x_dict = self.conv(x_dict, edge_index_dict)
        return self.out({key: self.drop(x) for key, x in x_dict.items()}['paper'])


def _hetero_losses(root: str) -> list[float]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(2)
    data['term'].x = torch.ones(data['term'].num_nodes, 2, dtype=torch.float64)
    model = _Hetero(data.metadata()).double()
    model = pyg_sar.DistributedDataParallel(model, dropout_seed=3)
    x_dict = {key: data[key].x for key in ('paper', 'author', 'term')}
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    y = data['paper'].y
    return descend(lambda: F.cross_entropy(model(x_dict, data.edge_index_dict), y), optimizer)


def test_heterogeneous() -> None:
    one, three = (cut_of(hetero_graph, p, 'random') for p in (1, 3))
    expected = _hetero_losses(one)
    assert len(set(expected)) == 3
    _check([*run_as_threads(_hetero_losses, 3, three), _hetero_losses(three)], expected)


# What cannot be drawn by id


class _Noise(SumConv):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j * torch.rand_like(x_j)


class _Odd(torch.nn.Module):
    """Does one thing that cannot be drawn by id."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.out = what, pyg.SAGEConv(4, 3)
        self.conv = _Noise() if what == 'rand' else pyg.SAGEConv(6, 4)
        self.weight = torch.nn.Parameter(torch.ones(7, 4))
        self.norms = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        if self.what == 'dropout_edge':
            edge_index = dropout_edge(edge_index, 0.3)[0]
        x = self.conv(x, edge_index)[:, :4]
        if self.what == 'alpha':
            x = F.alpha_dropout(x, 0.2, self.training)
        if self.what == 'weight':
            x = x + F.dropout(self.weight, 0.2).sum()
        if self.what == 'lstm':
            x = self.norms(x.unsqueeze(1))[0].squeeze(1)
        return self.out(x, edge_index)


def _odd(root: str, what: str) -> Tensor:
    torch.manual_seed(1)
    run = Run(root, _Odd(what).double())
    torch.manual_seed(1)  # what is drawn by torch is equal on all ranks
    return pyg_sar.gather(run()).detach()


_ODD = {
    'dropout_edge': 'draws random numbers by F.dropout',
    'alpha': 'draws random numbers by F.dropout',
    'lstm': 'draws random numbers by F.dropout',
    'rand': "'message' of _Noise that draws random numbers by F.dropout",
}


@pytest.mark.parametrize('what', _ODD)
def test_what_cannot_be_drawn_by_id_is_refused(what: str) -> None:
    with pytest.raises(Exception, match=_ODD[what]):
        run_as_threads(_odd, 2, _root(2), what)
    with pytest.raises(ValueError, match=_ODD[what]):
        _odd(_root(1), what)


def test_a_weight_drops_the_same_on_all_ranks() -> None:
    expected = _odd(_root(1), 'weight')
    for found in run_as_threads(_odd, 2, _root(2), 'weight'):
        assert_close(found, expected)


@on_ranks(2, by='threads')
def test_calls_from_outside_of_the_model_are_refused(data):
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(pyg.GAE(_Plain().double()), dropout_seed=1).module
    with pytest.raises(ValueError, match='call the model itself'):
        model.encode(data.x, data.edge_index)
    torch.manual_seed(0)
    inner = pyg_sar.DistributedDataParallel(_Plain().double(), dropout_seed=1)
    model = pyg_sar.DistributedDataParallel(pyg.GAE(inner)).module
    model.encode(data.x, data.edge_index).sum().backward()
    model.eval().encode(data.x, data.edge_index)


def test_batches_and_own_rows_are_refused() -> None:
    run, plain = Run(_root(2)), small_graph()
    for given in (plain, pyg_sar.local(run.data)):
        with pytest.raises(ValueError, match='needs the edge_index of load_shard'):
            run.model(given.x, given.edge_index)
    run.model.eval()
    run.model(plain.x, plain.edge_index)
    run.model.train()
    assert len(run.epochs(1)) == 1


class _InAggregation(SumConv):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return F.dropout(super().aggregate(inputs, index, dim_size=dim_size), 0.5, self.training)


def test_dropout_inside_an_aggregation_is_refused() -> None:
    shard = pyg_sar.load_shard(_root(2))
    model = torch.nn.Sequential(_InAggregation())
    conv = pyg_sar.DistributedDataParallel(model, dropout_seed=1)[0]
    wrapped = pyg_sar.DistributedDataParallel(_InAggregation(), dropout_seed=1)
    for each, words in ((wrapped, 'inside an aggregation'), (conv, 'call the model itself')):
        with pytest.raises(ValueError, match=words):
            each(shard.x, shard.edge_index)


@pytest.mark.parametrize('seed', [True, 1.5, 'x', 2**63])
def test_the_seed_is_an_integer(seed: Any) -> None:
    with pytest.raises(ValueError, match="'dropout_seed'"):
        pyg_sar.DistributedDataParallel(_Plain(), dropout_seed=seed)


def _other_seeds(root: str) -> None:
    Run(root, dropout_seed=1 + pyg_sar.comm.ranks.rank()).loss()


def test_seeds_that_differ_are_refused() -> None:
    with pytest.raises(Exception, match="same 'dropout_seed' and its step"):
        run_as_threads(_other_seeds, 2, _root(2))


# What programs do around a forward


def _ring() -> Data:
    """As many edges as nodes."""
    data, nodes = small_graph(), torch.arange(40)
    return Data(x=data.x, y=data.y, edge_index=torch.stack([nodes, nodes.roll(1)]), edge_attr=nodes)


def _cycle(root: str) -> Tensor:
    layers = [(torch.nn.Dropout(0.5), 'x -> x'), (pyg.GCNConv(6, 3), 'x, e -> x')]
    torch.manual_seed(1)
    model = pyg.Sequential('x, e, edge_attr', layers).double()
    return pyg_sar.gather(Run(root, model)()).detach()


def test_as_many_edges_as_nodes() -> None:
    root = cut_of(_ring, 2)
    expected = _cycle(root)
    for found in run_as_threads(_cycle, 2, root):
        assert_close(found, expected)


def test_copies_and_second_seeds() -> None:
    run = Run(_root(2))
    model = copy.deepcopy(run.model.module)
    first = run.loss()
    out = run(model)  # the first step of the copy
    assert torch.equal(F.cross_entropy(out, run.data.y), first)
    pyg_sar.DistributedDataParallel(model, dropout_seed=SEED + 1)
    assert not torch.equal(run(model), out)


def test_what_programs_do_around_a_forward() -> None:
    model = _Plain().double()
    run, other = (Run(_root(2), copy.deepcopy(model)) for _ in range(2))
    state = torch.get_rng_state()
    first, second = run.loss(), run.loss()
    (first + second).backward()  # masks of two steps are drawn again
    assert first.item() != second.item()
    assert torch.equal(state, torch.get_rng_state())
    other.model.eval()
    other.loss()  # no step
    other.model.train()
    torch.testing.assert_close(other.loss(), first, rtol=1e-12, atol=0)
    other.loss()
    loaded = copied(run.model.module, 'torch.save')
    found, expected = run(loaded), other()  # the third step, too
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class _OfData(_Plain):
    def forward(self, data: Any) -> Tensor:
        return super().forward(data.x, data.edge_index)


def test_the_edge_index_inside_a_data() -> None:
    data = pyg_sar.load_shard(_root(2))
    model = pyg_sar.DistributedDataParallel(_OfData().double(), dropout_seed=1)
    assert not torch.equal(model(data), model(data))
