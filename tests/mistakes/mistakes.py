"""Mistakes of people who met the project for the first time, as programs.

Each is made by one rank of three or by all; what they see says what is wrong and what to do.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from scipy.sparse import csr_matrix as csr_matrix_of_scipy
from sklearn.metrics import f1_score
from torch import Tensor
from torch_geometric.explain import Explainer, GNNExplainer, ModelConfig
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import (
    GCNConv,
    HypergraphConv,
    MessagePassing,
    SAGEConv,
)
from torch_geometric.utils import scatter

import pyg_sar

NUM_RANKS = 3


class Sorts(MessagePassing):
    """A conv that asks for the order of all rows."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x.sort(dim=0).values)


@dataclass(frozen=True)
class Mistake:
    """What somebody does, and what the first 200 characters of the message have to say."""

    do: Callable[..., Any]
    what: str  # what is wrong
    remedy: str  # what to do instead
    guilty: int | None = None  # the rank that differs from the others, which is named first


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(6, 8), SAGEConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def net(kind: Callable[[], torch.nn.Module] = Net, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return pyg_sar.DistributedDataParallel(kind().double())


def loss_of(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def mean_of_rows(data: Any, rank: int) -> None:
    out = net()(data.x, data.edge_index)
    pyg_sar.loader.mean_of_batches(F.cross_entropy(out, data.y, reduction='none'))


def evaluates_on_rank_0(data: Any, rank: int) -> None:
    model = net()
    loss_of(model, data).backward()
    if rank == 0:
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)
    loss_of(model, data).backward()


def eval_on_rank_1(data: Any, rank: int) -> None:
    loss_of(net().train(rank != 1), data)


def dtype_on_rank_1(data: Any, rank: int) -> None:
    net()(data.x.float() if rank == 1 else data.x, data.edge_index)


def another_seed(data: Any, rank: int) -> None:
    net(seed=rank == 2)


def another_width(data: Any, rank: int) -> None:
    net(lambda: SAGEConv(6, 4 if rank == 0 else 3))


def gradient_of_torch_func(data: Any, rank: int) -> None:
    model = net()
    torch.func.grad(lambda x: model(x, data.edge_index).sum())(data.x)


def jacobian(data: Any, rank: int) -> None:
    model = net()

    def result(weights: Any) -> Tensor:
        return torch.func.functional_call(model, weights, (data.x, data.edge_index)).sum(0)

    torch.func.jacrev(result)(dict(model.named_parameters()))


def conv_on_local_edges(data: Any, rank: int) -> None:
    pyg_sar.SARConv(SAGEConv(8, 4))(data.x, pyg_sar.local(data).edge_index)


def saves_rows(data: Any, rank: int) -> None:
    torch.save(data.x, io.BytesIO())


def numpy_of_rows(data: Any, rank: int) -> None:
    net()(data.x, data.edge_index).argmax(1).numpy()


def loader_of_pyg(data: Any, rank: int) -> None:
    NeighborLoader(data, [2, 2], batch_size=4)


def if_of_rows(data: Any, rank: int) -> None:
    if data.x > 0:
        data.x.zero_()


def edges_in_place(data: Any, rank: int) -> None:
    data.edge_index += 1


def scripted() -> Any:
    return torch.jit.script(torch.nn.Linear(6, 3).double())


def explained(data: Any, rank: int) -> None:
    config = ModelConfig('multiclass_classification', 'node', 'raw')
    masks = {'node_mask_type': 'attributes', 'edge_mask_type': 'object'}
    explainer = Explainer(net(), GNNExplainer(epochs=1), 'model', config, **masks)
    explainer(data.x, data.edge_index, index=3)


def few_labels(data: Any, rank: int) -> None:
    pairs, labels = torch.arange(40).view(2, 20), torch.ones(7)
    pyg_sar.LinkNeighborLoader(data, [2], pairs, edge_label=labels)


def hypergraph_without_a_number(data: Any, rank: int) -> None:
    net(lambda: HypergraphConv(6, 3))(data.x, data.edge_index)


def only_own_rows_split(data: Any, rank: int) -> None:
    T.RandomLinkSplit()(pyg_sar.local(data))


def only_own_rows_given(data: Any, rank: int) -> None:
    own = pyg_sar.local(data)
    net()(own.x, own.edge_index)


def mean_of_the_mean_of_a_batch(data: Any, rank: int) -> None:
    model = net()
    for batch in pyg_sar.NeighborLoader(data, [2, 2], data.train_mask, batch_size=4):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        pyg_sar.loader.mean_of_batches(F.cross_entropy(out, batch.y[: batch.batch_size]))


def share_of_a_rank(data: Any, rank: int) -> None:
    pyg_sar.NeighborLoader(data, [2, 2], torch.arange(20)[rank::NUM_RANKS], batch_size=4)


def links_of_a_rank(data: Any, rank: int) -> None:
    pairs = torch.arange(24).view(2, 12)
    pyg_sar.LinkNeighborLoader(data, [2, 2], pairs[:, rank::NUM_RANKS], batch_size=4)


def misspelt_option(data: Any, rank: int) -> None:
    pyg_sar.DistributedDataParallel(Net(), drpout_seed=1)


def labels_of_other_nodes(data: Any, rank: int) -> None:
    F.cross_entropy(net()(data.x, data.edge_index), data.y[data.train_mask])


def no_such_folder(data: Any, rank: int) -> None:
    pyg_sar.load_shard('nowhere/parts')


IN_STEP: dict[str, Mistake] = {
    'mean_of_batches of rows': Mistake(
        mean_of_rows, "plain numbers of a batch in 'losses'", 'losses.mean()'
    ),
    'evaluates on rank 0': Mistake(
        evaluates_on_rank_0, 'in evaluation; without gradients on rank 0', 'run the same lines', 0
    ),
    'eval() on rank 1': Mistake(
        eval_on_rank_1, 'in evaluation on rank 1', 'run the same lines on every rank', 1
    ),
    'another dtype on rank 1': Mistake(
        dtype_on_rank_1, 'float32 in 2 dimensions on rank 1', 'run the same lines on every rank', 1
    ),
    'another seed on rank 2': Mistake(
        another_seed, 'rank 2 has other numbers than rank 0', 'after torch.manual_seed(0)', 2
    ),
    'another width on rank 0': Mistake(
        another_width, 'out_channels=4 on rank 0', 'by the same lines on every rank', 0
    ),
    'torch.func.grad': Mistake(gradient_of_torch_func, "'torch.func.grad'", 'loss.backward()'),
    'torch.func.jacrev': Mistake(jacobian, 'torch.func (grad, vmap, jacrev', 'use backward()'),
    'a conv on local edges': Mistake(
        conv_on_local_edges, 'as pyg_sar.local gives them', 'the edge_index and rows of load_shard'
    ),
    'torch.save of rows': Mistake(saves_rows, 'cannot be pickled', 'pyg_sar.gather(x)'),
    'numpy of rows': Mistake(numpy_of_rows, "'numpy' of rows", 'pyg_sar.gather(x)'),
    "PyG's NeighborLoader": Mistake(
        loader_of_pyg, "PyG's NeighborSampler samples", 'use pyg_sar.NeighborLoader'
    ),
    'T.RandomLinkSplit of own rows': Mistake(
        only_own_rows_split, 'T.RandomLinkSplit means nothing', 'the data of pyg_sar.load_shard'
    ),
    'T.SIGN': Mistake(
        lambda data, rank: T.SIGN(2)(data), 'T.SIGN means nothing', "--transform 'SIGN'"
    ),
    'T.LaplacianLambdaMax in a forward': Mistake(
        lambda data, rank: T.LaplacianLambdaMax()(data),
        'T.LaplacianLambdaMax means nothing',
        'Data(edge_index=pyg_sar.gather(edge_index)',
    ),
    'a conv that is not wrapped': Mistake(
        lambda data, rank: Sorts()(data.x, data.edge_index),
        "'sort' of rows",
        'Sorts is not wrapped: call pyg_sar.DistributedDataParallel(model)',
    ),
    'nodes as channels': Mistake(
        lambda data, rank: torch.nn.BatchNorm1d(data.num_nodes)(data.x.t()),
        "'batch_norm' of rows",
        'put nodes first',
    ),
    'rows in order': Mistake(
        lambda data, rank: data.x.sort(dim=0), "'sort' of rows", 'pyg_sar.gather(x).sort(dim=0)'
    ),
    'T.LargestConnectedComponents': Mistake(
        lambda data, rank: T.LargestConnectedComponents()(data),
        'T.LargestConnectedComponents',
        "--transform 'Largest",
    ),
    'float of rows': Mistake(
        lambda data, rank: float(data.x), "'float' of rows", 'write x[3, 0].item()'
    ),
    'if of rows': Mistake(if_of_rows, "'bool' of rows", 'write (x > 0).all()'),
    'in rows': Mistake(lambda data, rank: 1 in data.y, "'contains' of rows", '(x == value).any()'),
    'for row in rows': Mistake(
        lambda data, rank: [*data.x], "'unbind' of rows", 'for row in pyg_sar.gather(x)'
    ),
    'scikit-learn of rows': Mistake(
        lambda data, rank: f1_score(data.y, data.y, average='micro'),
        "'array' of rows",
        'pyg_sar.gather(x).numpy(force=True)',
    ),
    'a SciPy matrix of rows': Mistake(
        lambda data, rank: csr_matrix_of_scipy(data.x), 'nodes, dim=0', 'pyg_sar.gather(x)'
    ),
    'N x N by matmul': Mistake(
        lambda data, rank: data.x @ data.x.t(), 'every row with every row', 'q @ pyg_sar.gather(k)'
    ),
    '[N] minus [N, 1]': Mistake(
        lambda data, rank: data.y - data.y.view(-1, 1), 'every row with every row', 'x.view(-1)'
    ),
    'N x N by cdist': Mistake(
        lambda data, rank: torch.cdist(data.x, data.x),
        'every row with every row',
        'torch.cdist(x, pyg_sar.gather(y))',
    ),
    'a diagonal matrix': Mistake(
        lambda data, rank: torch.diag(data.y), "'diag' of rows", 'torch.diag(pyg_sar.gather(x))'
    ),
    'a convolution over nodes': Mistake(
        lambda data, rank: F.conv1d(data.x.t(), torch.ones(1, 6, 3).double()),
        "'conv1d' of rows",
        'pyg_sar.gather(x)',
    ),
    'an LSTM over nodes': Mistake(
        lambda data, rank: torch.nn.LSTM(6, 3).double()(data.x), "'lstm' of rows", 'x.unsqueeze(1)'
    ),
    'a product of groups': Mistake(
        lambda data, rank: scatter(data.x, data.y, reduce='mul'),
        "of kind 'prod'",
        'torch_geometric.utils.scatter(*map(pyg_sar.gather',
    ),
    'a table of other rows': Mistake(
        lambda data, rank: data.x + torch.ones(7, 6), 'a plain tensor with 7 rows', 'of the whole'
    ),
    'edges in place': Mistake(edges_in_place, 'edges in place', 'write edge_index[:, mask]'),
    'repeated rows': Mistake(
        lambda data, rank: data.x.repeat(2, 1), 'another order', 'x.repeat_interleave(n, 0)'
    ),
    'TorchScript wrapped': Mistake(
        lambda data, rank: pyg_sar.DistributedDataParallel(scripted()),
        'got one of TorchScript',
        'without torch.jit.script',
    ),
    'TorchScript of rows': Mistake(
        lambda data, rank: scripted()(data.x), "'TorchScript' of rows", 'call the model itself'
    ),
    'torch.jit.trace of rows': Mistake(
        lambda data, rank: torch.jit.trace(torch.nn.Linear(6, 3).double(), data.x),
        "'torch.jit.trace' of rows",
        'trace the plain model',
    ),
    'torch.export of rows': Mistake(
        lambda data, rank: torch.export.export(net(), (data.x, data.edge_index)),
        "'torch.export' of rows",
        'give it plain tensors and the plain model',
    ),
    'an explainer': Mistake(
        explained, 'cannot be explained', 'plain.load_state_dict(model.state_dict())'
    ),
    'too few labels of links': Mistake(
        few_labels, "'edge_label' must have a row for each of 20", 'write edge_label=values[ids]'
    ),
    'HypergraphConv without num_edges': Mistake(
        hypergraph_without_a_number, "'size' of HypergraphConv", 'num_edges=data.num_nodes'
    ),
    'mean_of_batches of a number': Mistake(
        mean_of_the_mean_of_a_batch, "'mean_of_batches' takes a number for", "reduction='none'"
    ),
    "a rank's share of seeds": Mistake(
        share_of_a_rank,
        "expected the same 'input_nodes' on all ranks",
        'give the same on every rank',
    ),
    "a rank's share of links": Mistake(
        links_of_a_rank,
        "expected the same 'edge_label_index' on all ranks",
        'give the same on every rank',
    ),
    'a misspelt option': Mistake(
        misspelt_option, "no option 'drpout_seed'", 'do you mean dropout_seed?'
    ),
    'labels of other nodes': Mistake(
        labels_of_other_nodes, "'cross_entropy' of rows", 'select alike in both'
    ),
    'a model of own rows': Mistake(
        only_own_rows_given,
        'got the own edges and rows of a rank',
        'takes the edge_index and rows of load_shard',
    ),
    'a wrong kind of negatives': Mistake(
        lambda data, rank: pyg_sar.LinkNeighborLoader(data, [2], neg_sampling='tripplet'),
        "'neg_sampling' must be",
        "'binary', 'triplet'",
    ),
    'no such folder': Mistake(
        no_such_folder, "'nowhere/parts' (got no folder)", 'pyg_sar.partition'
    ),
}
"""What all ranks refuse alike, and go on; on the rows of the small graph."""


def loads(data: Any, rank: int) -> None:
    """Has failed before."""


def bug_on_rank_1(data: Any, rank: int) -> None:
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


LAUNCHED: dict[str, Mistake] = {
    'load_shard before init': Mistake(
        loads, 'expected pyg_sar.init()', 'call pyg_sar.init() first'
    ),
    '4 parts on 3 ranks': Mistake(loads, 'the 4 parts', 'cut the graph into 3 or 6 parts'),
    'a bug on rank 1': Mistake(
        bug_on_rank_1, "rank 1 failed with KeyError: 'only here'", 'see its traceback', 1
    ),
    'rank 2 stops early': Mistake(
        stops_early, 'rank 2 has ended or is cut off', 'all ranks must make the same calls', 2
    ),
    'a skipped backward': Mistake(skips_a_backward, 'is at ', 'run the same lines on every rank'),
    'a forward in a thread of rank 0': Mistake(
        runs_in_a_thread, 'is at ', 'run the same lines on every rank'
    ),
    'rank 1 is killed': Mistake(
        is_killed, 'rank 1 has ended or is cut off', 'see the end of its log', 1
    ),
    'evaluates on rank 0': IN_STEP['evaluates on rank 0'],
}
"""Those that end processes, as a terminal shows them."""


def reads_one_by_one(data: Any) -> None:
    row = data.edge_index[0].repeat_interleave(5)
    for edge in range(1100):
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
    LAUNCHED[name].do(pyg_sar.load_shard(root), process.rank)


if __name__ == '__main__':
    main()
