"""Messages that are x_j times a factor that they compute of other tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_pyg import MODES, compared, paths_of, values
from expressions import expressions
from on_ranks import on_ranks
from pairs import pairs
from small_graphs import assert_close
from torch import Tensor
from torch_geometric.nn import AGNNConv, FAConv, GMMConv, MessagePassing, TransformerConv
from torch_geometric.utils import softmax

from pyg_sar import DistributedDataParallel, gather

HEADS, CHANNELS = 2, 5


class Attends(MessagePassing):
    """Attention whose scores the message computes, in the form that is asked for."""

    def __init__(self, form: str, aggr: str = 'sum') -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.form, self.kept = form, None
        self.lin = torch.nn.Linear(6, HEADS * CHANNELS)
        self.scores = torch.nn.Linear(6, HEADS)
        self.of_edges = torch.nn.Linear(4, HEADS)
        self.scale = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        rows = self.lin(x).view(-1, HEADS, CHANNELS)
        out = self.propagate(edge_index, x=rows, score=self.scores(x), edge_attr=edge_attr)
        return out.reshape(x.size(0), -1)

    def message(
        self, x_j: Tensor, score_i: Any, score_j: Any, edge_attr: Any, index: Any
    ) -> Tensor:
        logits = score_i + self.scale * score_j + self.of_edges(edge_attr)
        names = {'x_j': x_j, 'logits': logits, 'soft': lambda scores: softmax(scores, index)}
        return eval(self.form, globals(), names | {'keep': self.keep})

    def keep(self, weights: Tensor) -> Tensor:
        self.kept = weights
        return weights


# Messages of x_j [edges, HEADS, CHANNELS] and logits [edges, HEADS].
SOFTMAX = 'x_j * soft(logits).view(-1, HEADS, 1)'
GATES = 'logits.tanh().unsqueeze(-1) * x_j'
SUM_OF_HEADS = f'({SOFTMAX}).sum(dim=-2)'
FACTORED = f"""
{SOFTMAX}; {GATES}; logits.sum(-1).sigmoid().view(-1, 1, 1) * x_j; {SUM_OF_HEADS}
x_j * keep(soft(logits)).view(-1, HEADS, 1)
torch.mul(x_j, soft(logits)[:, :, None]).view(-1, HEADS * CHANNELS)
torch.sum(({SOFTMAX}).view(-1, 1, HEADS, CHANNELS), 3).flatten(1)
"""
# x_j is read elsewhere, too, or a part takes no gradient, or the factor is as large.
REPLAYED = """
x_j * soft(logits + x_j.sum(-1)).view(-1, HEADS, 1); x_j.detach() * soft(logits).unsqueeze(-1)
x_j * (logits.unsqueeze(-1) + torch.arange(1.0, 1 + CHANNELS).to(logits)).sin()
(x_j.view(-1, CHANNELS) * soft(logits).view(-1, 1)).view(-1, HEADS, CHANNELS)
x_j.sum(1, keepdim=True) * soft(logits).view(-1, HEADS, 1)
"""
# A softmax that does more than weight.
BY_DESTINATION = f"""
x_j * soft(soft(logits) * logits).view(-1, HEADS, 1); x_j * soft(logits).detach().unsqueeze(-1)
torch.no_grad()(torch.mul)(x_j, soft(logits).unsqueeze(-1)); x_j * soft(logits).unsqueeze(-1) + 1
({SOFTMAX}).sum(1).sum(1, keepdim=True)
"""


def _check(data: Any, form: str, mode: str = 'sequential', aggr: str = 'sum') -> set[str]:
    """The paths of the messages, whose results are those of plain PyG."""
    torch.manual_seed(5)
    model, plain = compared(Attends(form, aggr).double(), data, mode)
    if plain.kept is not None:
        assert_close(gather(model.kept.detach()), plain.kept.detach(), tolerance=1e-10)
    return paths_of(model)


@pairs(form=expressions(FACTORED), world_size=[1, 3], mode=MODES)
@on_ranks(by='threads')
def test_sums_of_rows_times_a_factor(data, form, world_size, mode):
    assert _check(data, form, mode) == {'one_shot' if mode == 'one_shot' else 'scalar times x_j'}


@pytest.mark.parametrize('form', [SOFTMAX, SUM_OF_HEADS])
@on_ranks(by='threads')
def test_mean(data, form):
    assert _check(data, form, aggr='mean') == {'scalar times x_j'}


OTHERS = [*product(expressions(REPLAYED), ['replay'])]
OTHERS += product(expressions(BY_DESTINATION), ['by destination'])


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize(('form', 'path'), OTHERS)
@on_ranks(by='threads')
def test_others(data, form, path, world_size):
    assert _check(data, form) == {path}


@on_ranks(by='threads')
def test_maxima_and_hooks_are_replayed(data):
    assert _check(data, GATES, aggr='max') == {'replay'}
    model = DistributedDataParallel(Attends(GATES).double())
    seen = []
    model.register_message_forward_hook(lambda conv, inputs, out: seen.append(out.shape))
    model(data.x, data.edge_index, data.edge_attr)
    assert paths_of(model) != {'scalar times x_j'}
    assert all(shape[1:] == (HEADS, CHANNELS) for shape in seen)


CONVS = {
    'AGNN': (lambda: AGNNConv(), ''),
    'FA': (lambda: FAConv(6), 'x'),
    'GMM': (lambda: GMMConv(6, 5, 4, 3), 'edge_attr'),
    'Transformer': (lambda: TransformerConv(6, 5, 2), ''),
}


class Calls(torch.nn.Module):
    def __init__(self, make: Callable[[], torch.nn.Module], takes: str) -> None:
        super().__init__()
        self.conv, self.takes = make(), takes

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        more = {'x': [x, x, edge_index], 'edge_attr': [x, edge_index, edge_attr]}
        return self.conv(*more.get(self.takes, [x, edge_index]))


@pytest.mark.parametrize('name', CONVS)
@on_ranks(by='threads')
def test_convs(data, name):
    torch.manual_seed(0)
    model, _ = compared(Calls(*CONVS[name]).double(), data)
    assert paths_of(model) == {'scalar times x_j'}


class Drops(Attends):
    def message(
        self, x_j: Tensor, score_i: Any, score_j: Any, edge_attr: Any, index: Any
    ) -> Tensor:
        alpha = softmax(score_i + score_j + self.of_edges(edge_attr), index)
        return x_j * F.dropout(alpha, 0.5, self.training).unsqueeze(-1)


@on_ranks(by='threads')
def test_masks_of_dropout_are_those_of_forward(data):
    """The gradient of x is linear in it: backward saw the mask of forward."""
    torch.manual_seed(0)
    drops, found = Drops('').double(), []
    for mode in ('sequential', 'one_shot'):
        model = DistributedDataParallel(copy.deepcopy(drops), dropout_seed=3, mode=mode)
        found.append(values(model, data))
        assert paths_of(model) == {'one_shot' if mode == 'one_shot' else 'scalar times x_j'}
    for own, other in zip(*found, strict=True):
        assert_close(own, other, tolerance=1e-10)
