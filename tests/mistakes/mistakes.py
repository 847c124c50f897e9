"""Mistakes of people who met the project for the first time, as programs.

Each is made by one rank of three or by all; what they see says what is wrong and what to do.
"""

from __future__ import annotations

import io  # noqa: F401 (of a program below)
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T  # noqa: F401 (of the programs, as the next ones)
from torch import Tensor
from torch.nn import Linear  # noqa: F401
from torch_geometric.explain import Explainer, GNNExplainer, ModelConfig
from torch_geometric.loader import NeighborLoader  # noqa: F401
from torch_geometric.nn import GCNConv, HypergraphConv, MessagePassing, SAGEConv  # noqa: F401

import pyg_sar

NUM_RANKS = 3


class ReadsMemory(MessagePassing):
    """A conv that asks where numbers lie."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x + x.data_ptr())


@dataclass(frozen=True)
class Mistake:
    """A wrong program, and the words that the first 200 characters of the message must have."""

    do: str  # statements about `data` and `rank`
    what: str  # what is wrong
    remedy: str  # what to do instead
    guilty: int | None = None  # the rank that differs from the others, which is named first

    def make(self, data: Any, rank: int) -> None:
        exec(self.do, {**globals(), 'data': data, 'rank': rank})


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(6, 8), SAGEConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def net(kind: Callable[[], torch.nn.Module] = Net, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return pyg_sar.DistributedDataParallel(kind().double())


def out(data: Any) -> Tensor:
    return net()(data.x, data.edge_index)


def loss_of(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def evaluates_on_rank_0(data: Any, rank: int) -> None:
    model = net()
    loss_of(model, data).backward()
    if rank == 0:
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)
    loss_of(model, data).backward()


def jacobian(model: Any, data: Any) -> None:
    def result(weights: Any) -> Tensor:
        return torch.func.functional_call(model, weights, (data.x, data.edge_index)).sum(0)

    torch.func.jacrev(result)(dict(model.named_parameters()))


def scripted() -> Any:
    return torch.jit.script(torch.nn.Linear(6, 3).double())


def explained(data: Any) -> None:
    config = ModelConfig('multiclass_classification', 'node', 'raw')
    masks = {'node_mask_type': 'attributes', 'edge_mask_type': 'object'}
    explainer = Explainer(net(), GNNExplainer(epochs=1), 'model', config, **masks)
    explainer(data.x, data.edge_index, index=3)


def mean_of_the_mean_of_a_batch(data: Any) -> None:
    model = net()
    for batch in pyg_sar.NeighborLoader(data, [2, 2], data.train_mask, batch_size=4):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        pyg_sar.loader.mean_of_batches(F.cross_entropy(out, batch.y[: batch.batch_size]))


_TABLE = """
# of one rank
[0] evaluates_on_rank_0(data, rank)
    in evaluation; without gradients on rank 0 => run the same lines
[1] loss_of(net().train(rank != 1), data)
    in evaluation on rank 1 => run the same lines on every rank
[1] net()(data.x.float() if rank == 1 else data.x, data.edge_index)
    float32 in 2 dimensions on rank 1 => run the same lines on every rank
[2] net(seed=rank == 2)
    rank 2 has other numbers than rank 0 => after torch.manual_seed(0)
[0] m = net(); loss_of(m, data).backward(); rank or m.zero_grad(); loss_of(m, data).backward()
    equal on all ranks (rank 0 has => zero_grad() or a change of .grad is of one rank alone
[0] net(lambda: SAGEConv(6, 4 if rank == 0 else 3))
    out_channels=4 on rank 0 => by the same lines on every rank
# of a model
model = net(); torch.func.grad(lambda x: model(x, data.edge_index).sum())(data.x)
    'torch.func.grad' => loss.backward()
jacobian(net(), data)
    torch.func (grad, vmap, jacrev => use backward()
pyg_sar.SARConv(SAGEConv(8, 4))(data.x, pyg_sar.local(data).edge_index)
    as pyg_sar.local gives them => the edge_index and rows of load_shard
own = pyg_sar.local(data); net()(own.x, own.edge_index)
    got the own edges and rows of a rank => takes the edge_index and rows of load_shard
ReadsMemory()(data.x, data.edge_index)
    'data_ptr' of rows => ReadsMemory is not wrapped: call pyg_sar.DistributedDataParallel(model)
net(lambda: HypergraphConv(6, 3))(data.x, data.edge_index)
    'size' of HypergraphConv => num_edges=data.num_nodes
pyg_sar.DistributedDataParallel(Net(), drpout_seed=1)
    no option 'drpout_seed' => do you mean dropout_seed?
pyg_sar.DistributedDataParallel(scripted())
    got one of TorchScript => without torch.jit.script
explained(data)
    cannot be explained => plain.load_state_dict(model.state_dict())
net()(data.x, data.edge_index.t())
    expected an 'edge_index' of shape [2, E] => (got [
# of a loss
pyg_sar.loader.mean_of_batches(F.cross_entropy(out(data), data.y, reduction='none'))
    plain numbers of a batch in 'losses' => losses.mean()
mean_of_the_mean_of_a_batch(data)
    'mean_of_batches' takes a number for => reduction='none'
F.cross_entropy(out(data), data.y[data.train_mask])
    'cross_entropy' of rows => select alike in both
# of data
pyg_sar.load_shard('nowhere/parts')
    'nowhere/parts' (got no folder) => pyg_sar.partition
data.edge_index += 1
    edges in place => write edge_index[:, mask]
T.RandomLinkSplit()(pyg_sar.local(data))
    T.RandomLinkSplit means nothing => the data of pyg_sar.load_shard
T.RootedEgoNets(1)(data)
    T.RootedEgoNets means nothing => --transform 'RootedEgoNets'
# of a loader
NeighborLoader(data, [2, 2], batch_size=4)
    PyG's NeighborSampler samples => use pyg_sar.NeighborLoader
pyg_sar.LinkNeighborLoader(data, [2], torch.arange(40).view(2, 20), edge_label=torch.ones(7))
    'edge_label' must have a row for each of 20 => write edge_label=values[ids]
pyg_sar.NeighborLoader(data, [2, 2], torch.arange(20)[rank::3], batch_size=4)
    expected the same 'input_nodes' on all ranks => give the same on every rank
pyg_sar.LinkNeighborLoader(data, [2, 2], torch.arange(24).view(2, 12)[:, rank::3])
    expected the same 'edge_label_index' on all ranks => give the same on every rank
pyg_sar.LinkNeighborLoader(data, [2], neg_sampling='tripplet')
    'neg_sampling' must be => 'binary', 'triplet'
# of rows
torch.save(data.x, io.BytesIO())
    cannot be pickled => pyg_sar.gather(x)
float(data.x)
    'float' of rows => write x[3, 0].item()
if data.x > 0: data.x.zero_()
    'bool' of rows => write (x > 0).all()
data.x + torch.ones(7, 6)
    a plain tensor with 7 rows => of the whole
data.y - data.y.view(-1, 1)
    every row with every row => y[None, :] for all pairs
scripted()(data.x)
    'TorchScript' of rows => call the model itself
torch.jit.trace(Linear(6, 3).double(), data.x)
    'torch.jit.trace' of rows => trace the plain model
torch.export.export(net(), (data.x, data.edge_index))
    'torch.export' of rows => give it plain tensors and the plain model
"""
"""Statements, perhaps after the guilty rank; then what is wrong, and the remedy."""


def _mistakes(table: str) -> Iterator[Mistake]:
    lines = [line for line in table.splitlines() if line and line[0] != '#']
    for do, told in zip(lines[::2], lines[1::2], strict=True):
        guilty, do = re.fullmatch(r'(?:\[(\d)\] )?(.*)', do).groups()
        what, remedy = told.strip().split(' => ')
        yield Mistake(do, what, remedy, None if guilty is None else int(guilty))


IN_STEP = [*_mistakes(_TABLE)]
"""What all ranks refuse alike, and go on; on the rows of the small graph."""


def has_a_bug(data: Any, rank: int) -> None:
    model = net()
    loss_of(model, data)
    if rank == 1:
        raise KeyError('only here')
    loss_of(model, data)


def stops_early(data: Any, rank: int) -> None:
    model = net()
    for epoch in range(3):
        loss_of(model, data).backward()
        if rank == 2 and epoch == 1:
            return


def skips_a_backward(data: Any, rank: int) -> None:
    model = net()
    for _ in range(2):
        loss = loss_of(model, data)
        if rank != 1:
            loss.backward()


def runs_in_a_thread(data: Any, rank: int) -> None:
    model = net()
    if rank == 0:
        thread = threading.Thread(target=lambda: model(data.x, data.edge_index))
        thread.start()
        thread.join()
    loss_of(model, data)


def is_killed(data: Any, rank: int) -> None:
    model = net()
    loss_of(model, data)
    if rank == 1:
        os.kill(os.getpid(), 9)
    loss_of(model, data)


_OF_PROCESSES = """
pass  # load_shard before init
    expected pyg_sar.init() => call pyg_sar.init() first
pass  # 4 parts on 3 ranks
    the 4 parts => cut the graph into 3 or 6 parts
[1] has_a_bug(data, rank)
    rank 1 failed with KeyError: 'only here' => see its traceback
[2] stops_early(data, rank)
    rank 2 has ended or is cut off => all ranks must make the same calls
skips_a_backward(data, rank)
    is at => run the same lines on every rank
runs_in_a_thread(data, rank)
    is at => run the same lines on every rank
[1] is_killed(data, rank)
    rank 1 has ended or is cut off => see the end of its log
[0] evaluates_on_rank_0(data, rank)
    in evaluation; without gradients on rank 0 => run the same lines
"""
LAUNCHED = {mistake.do.removeprefix('pass  # '): mistake for mistake in _mistakes(_OF_PROCESSES)}
"""Those that end processes, as a terminal shows them."""


def reads_one_by_one(data: Any) -> None:
    row = data.edge_index[0].repeat_interleave(5)
    for edge in range(110):
        row[edge].item()


def labels_of_minus_one(data: Any, model: Any) -> Tensor:
    y = torch.where(data.train_mask, data.y, -1)
    return F.cross_entropy(model(data.x, data.edge_index), y, ignore_index=-1)


def layer_replaced(data: Any, model: Any) -> Tensor:
    torch.manual_seed(1)
    getattr(model, 'module', model).second = GCNConv(8, 3).double()
    return loss_of(model, data)


RIGHT: dict[str, Callable[[Any, Any], Tensor]] = {
    'labels of -1': labels_of_minus_one,
    'a layer replaced after wrapping': layer_replaced,
}
"""What was refused once and is right."""


def main() -> None:
    """One of LAUNCHED, on one of three ranks, with a folder of three parts."""
    name, root = sys.argv[1:]
    if name == 'load_shard before init':
        pyg_sar.load_shard(root)
    process = pyg_sar.init(timeout=15)
    LAUNCHED[name].make(pyg_sar.load_shard(root), process.rank)


if __name__ == '__main__':
    main()
