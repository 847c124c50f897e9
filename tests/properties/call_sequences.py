"""Sequences of calls on a drawn graph: what a conv gives must not depend on the calls before it.

A :class:`Sequence` is drawn by :func:`sequences`. :func:`run` is the program: it is written for one
process, and says nothing of ranks. What it finds on ranks is what it finds with plain PyG.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch_geometric.nn as nn
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

WIDTH, NUM_MASKS, NUM_WEIGHTS = 4, 4, 3
DEGREES = torch.tensor([3, 6, 4, 2, 1])


class Own(nn.MessagePassing):
    """A message of both ends and the weight, as users write them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(aggr='add', **options)
        self.lin = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Sums of what both ends give."""
        out: Tensor = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        return out

    def message(self, x_i: Tensor, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """A layer of both ends, weighted."""
        return edge_weight.view(-1, 1) * self.lin(torch.cat([x_i, x_j - x_i], -1)).tanh()


def _mlp(*widths: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(widths[0], 5), torch.nn.Tanh(), torch.nn.Linear(5, widths[1])
    )


def _pna(**options: Any) -> Any:
    aggregators, scalers = ['mean', 'min', 'std', 'sum'], ['identity', 'amplification', 'linear']
    return nn.PNAConv(WIDTH, WIDTH, aggregators, scalers, DEGREES, edge_dim=3, **options)


CONVS: dict[str, tuple[Callable[..., Any], str]] = {
    'GCN': (lambda **o: nn.GCNConv(WIDTH, WIDTH, **o), 'weight'),
    'GCN without loops': (lambda **o: nn.GCNConv(WIDTH, 6, add_self_loops=False, **o), 'weight'),
    'SAGE mean': (lambda **o: nn.SAGEConv(WIDTH, WIDTH, **o), ''),
    'SAGE max': (lambda **o: nn.SAGEConv(WIDTH, WIDTH, aggr='max', **o), ''),
    'SAGE sum': (lambda **o: nn.SAGEConv(WIDTH, 2, aggr='sum', **o), ''),
    'SAGE lstm': (lambda **o: nn.SAGEConv(WIDTH, WIDTH, aggr='lstm', **o), 'sorted'),
    'SAGE median': (lambda **o: nn.SAGEConv(WIDTH, WIDTH, aggr='median', **o), ''),
    'GraphConv': (lambda **o: nn.GraphConv(WIDTH, WIDTH, **o), 'weight'),
    'GraphConv mean': (lambda **o: nn.GraphConv(WIDTH, WIDTH, aggr='mean', **o), 'weight'),
    'GIN': (lambda **o: nn.GINConv(_mlp(WIDTH, WIDTH), train_eps=True, **o), ''),
    'GAT': (lambda **o: nn.GATConv(WIDTH, 2, heads=2, edge_dim=3, **o), 'attr'),
    'GATv2': (lambda **o: nn.GATv2Conv(WIDTH, 2, heads=2, edge_dim=3, **o), 'attr'),
    'Transformer': (lambda **o: nn.TransformerConv(WIDTH, 2, heads=2, edge_dim=3, **o), 'attr'),
    'RGCN': (lambda **o: nn.RGCNConv(WIDTH, WIDTH, 5, **o), 'type'),
    'FastRGCN': (lambda **o: nn.FastRGCNConv(WIDTH, WIDTH, 5, num_bases=2, **o), 'type'),
    'RGAT': (lambda **o: nn.RGATConv(WIDTH, WIDTH, 5, **o), 'type'),
    'FiLM': (lambda **o: nn.FiLMConv(WIDTH, WIDTH, 5, act=torch.tanh, **o), 'type'),
    'Cheb': (lambda **o: nn.ChebConv(WIDTH, WIDTH, 3, **o), 'weight'),
    'TAG': (lambda **o: nn.TAGConv(WIDTH, WIDTH, K=2, **o), 'weight'),
    'SG': (lambda **o: nn.SGConv(WIDTH, WIDTH, K=2, **o), 'weight'),
    'PNA': (_pna, 'attr'),
    'NN': (lambda **o: nn.NNConv(WIDTH, WIDTH, _mlp(3, WIDTH * WIDTH), **o), 'attr'),
    'EdgeConv': (lambda **o: nn.EdgeConv(_mlp(2 * WIDTH, WIDTH), **o), ''),
    'Own': (lambda **o: Own(**o), 'weight needed'),
}
"""How a conv is made, and what of the edges it takes beside the ids."""


FAMILIES = [
    'GraphConv, SAGE mean, GraphConv mean, SAGE sum, GIN, GCN',
    'SAGE median, SAGE lstm',
    'SAGE max, PNA, NN, EdgeConv, Own',
    'GAT, GATv2, Transformer, RGAT',
    'RGCN, FastRGCN, FiLM',
    'GCN, GCN without loops, Cheb, TAG, SG',
]
"""Convs that are computed in one way; each is drawn as often as the others."""


@dataclass(frozen=True)
class Call:
    """A forward, and a backward if gradients are on."""

    edges: str  # 'all', 'mask', 'kept mask' or 'ids'
    mask: int
    weight: int  # 0 for none
    takes: str  # 'raw', 'other' or 'gradient': which features
    mode: str  # 'train', 'eval', 'no_grad' or 'inference'


@dataclass(frozen=True)
class Change:
    """A tensor that is changed in place: it becomes another one, or what it was."""

    what: str  # 'kept mask', 'ids', 'weight', 'features' or 'nodes'
    which: int
    shift: int  # 0 for what it was


@dataclass(frozen=True)
class Rounded:
    """A forward of another conv, whose rows travel rounded."""

    mask: int


@dataclass(frozen=True)
class Picked:
    """The mean of the nodes of a mask that is kept."""


@dataclass(frozen=True)
class ById:
    """Rows of nodes by their ids; `lists` are those of each rank."""

    lists: tuple[int, ...]


Step = Call | Change | Rounded | Picked | ById


@dataclass(frozen=True)
class Sequence:
    """A graph, a cut, a model and what is done with it, by numbers that hypothesis shrinks."""

    num_nodes: int
    num_edges: int
    shape: str  # where edges are
    seed: int  # of the graph
    ranks: int
    num_parts: int
    full_parts: int  # how many of the parts have nodes
    conv: str
    layers: int
    flow: str
    options: tuple[tuple[str, Any], ...]
    in_inference: bool  # whether all of it runs in inference mode
    steps: tuple[Step, ...]

    def parts(self) -> Tensor:
        """The part of every node; the first parts have none where there are empty ones."""
        g = torch.Generator().manual_seed(self.seed + 1)
        few = torch.randint(self.full_parts, (self.num_nodes,), generator=g)
        return few + self.num_parts - self.full_parts

    def graph(self) -> Data:
        """The graph, with masks and weights for the sequence."""
        g = torch.Generator().manual_seed(self.seed)
        n, num_edges = self.num_nodes, self.num_edges

        def draw(most: int, *shape: int) -> Tensor:
            return torch.randint(max(most, 1), shape, generator=g)

        edges = draw(n, 2, num_edges)
        parts = self.parts()
        is_cross = parts[edges[0]] != parts[edges[1]]
        hubs = draw(n, 3)[draw(3, num_edges)]
        if self.shape == 'hubs in':  # what other parts read ends in a few nodes: sums travel
            edges[1] = torch.where(is_cross, hubs, edges[1])
        elif self.shape == 'hubs out':
            edges[0] = torch.where(is_cross, hubs, edges[0])
        elif self.shape == 'one way':  # from one part on: a rank without in-edges of others
            edges[1] = torch.where(parts[edges[1]] == parts[0], edges[0], edges[1])
        elif self.shape == 'twice':
            edges = edges[:, draw(max(num_edges // 2, 1), num_edges)] if num_edges else edges
        if 'sorted' in CONVS[self.conv][1]:
            to = 1 if self.flow == 'source_to_target' else 0
            edges = edges[:, edges[to].argsort(stable=True)]
        normal = {'generator': g, 'dtype': torch.float64}
        weight = torch.rand(num_edges, **normal) + 0.5
        data = Data(
            x=torch.randn(n, WIDTH, **normal),
            other=torch.randn(n, WIDTH, **normal),
            target=torch.randn(n, 8, **normal),
            edge_index=edges,
            edge_attr=torch.randn(num_edges, 3, **normal),
            edge_type=(torch.rand(num_edges, generator=g) ** 2 * 5).long(),
            num_nodes=n,
        )
        part_of, some = parts[edges[1]], int(draw(self.num_parts, 1))
        one = torch.arange(num_edges) == draw(num_edges, 1)
        into_one = torch.zeros(n, dtype=torch.bool)
        into_one[draw(n, 1)] = True
        masks = [
            torch.ones(num_edges, dtype=torch.bool),
            ~(one & (part_of == part_of[one])) if num_edges else one,  # all but one edge
            (part_of != some) | (draw(2, num_edges) > 0),  # some of those into one part
            [draw(3, num_edges) == 0, ~into_one[edges[1]], part_of == some][self.seed % 3],
        ]
        for i, mask in enumerate(masks):
            data[f'edge_mask{i}'] = mask
        data.edge_weight1 = weight
        data.edge_weight2 = torch.where(one, 0.0, weight)
        data.edge_weight3 = torch.where(part_of == some, weight * 2 - 0.25, weight)
        for i in (0, 1, 2):
            data[f'node_mask{i}'] = torch.rand(n, generator=g) < (0.3, 0.7, 1.1)[i]
        return data

    def lists(self) -> list[Tensor]:
        """Ids of nodes, the first list without any."""
        g = torch.Generator().manual_seed(self.seed + 2)
        some = [torch.randint(self.num_nodes, (3,), generator=g) for _ in range(2)]
        return [torch.empty(0, dtype=torch.int64), *some]


_MODES = ['train', 'train', 'eval', 'no_grad', 'inference']
_CALLS = st.builds(
    Call,
    edges=st.sampled_from(['mask', 'kept mask', 'all', 'ids', 'mask']),
    mask=st.integers(0, NUM_MASKS - 1),
    weight=st.integers(0, NUM_WEIGHTS),
    takes=st.sampled_from(['gradient', 'raw', 'other']),
    mode=st.sampled_from(_MODES),
)
_ORDERS = [(0, 1, 0), (0, 1, 0, 1, 0), (0, 0, 1, 0), (0, 1, 1, 0, 0)]


@st.composite
def sequences(draw: st.DrawFn, conv: str = '') -> Sequence:
    """Calls of which one comes again after another that differs from it in one thing only."""
    ranks = draw(st.sampled_from([3, 2, 3, 2, 1]))
    num_parts = ranks * draw(st.sampled_from([1, 1, 1, 2, 4 // ranks]))
    num_nodes = draw(st.integers(max(num_parts, 8), 60) | st.integers(num_parts, 60))
    dense = draw(st.sampled_from([4, 2, 6, 4, 1, 2, 0]))
    kinds = ['call'] * 3 + ['change'] * 2 + ['ids', 'round', 'any']
    kind = draw(st.sampled_from(kinds))
    steps, in_inference = draw(_PATTERNS[kind](ranks))
    family = draw(st.sampled_from(FAMILIES))
    convs = ['SAGE mean', 'GraphConv mean'] if kind == 'round' else family.split(', ')
    convs = [conv] if conv else convs
    mode = draw(st.sampled_from(['sequential'] * 4 + ['one_shot', 'sequential_no_remat']))
    options: dict[str, Any] = {'mode': mode}
    if mode != 'one_shot':
        options['partial_sums'] = draw(st.sampled_from([True, True, True, False]))
    return Sequence(
        num_nodes=num_nodes,
        num_edges=min(num_nodes * dense, 200),
        shape=draw(st.sampled_from(['hubs in', 'any', 'hubs in', 'hubs out', 'one way', 'twice'])),
        seed=draw(st.integers(0, 10**6)),
        ranks=ranks,
        num_parts=num_parts,
        full_parts=draw(st.sampled_from([num_parts, num_parts, max(num_parts - 1, 1)])),
        conv=draw(st.sampled_from(convs)),
        layers=draw(st.sampled_from([1, 2])),
        flow=draw(st.sampled_from(['source_to_target', 'target_to_source'])),
        options=tuple(options.items()),
        in_inference=in_inference,
        steps=tuple(steps),
    )


_Pattern = tuple[list[Step], bool]  # and whether all of it is in inference mode


@st.composite
def _calls(draw: st.DrawFn, ranks: int) -> _Pattern:
    """A call and another one that differs in one thing."""
    first = draw(_CALLS)
    field = draw(st.sampled_from(['mask'] * 4 + ['weight', 'weight', 'mode', 'takes']))
    if field == 'mask' and first.edges == 'all':
        first = replace(first, edges='mask')
    others = {field: getattr(draw(_CALLS), field)}
    if field in ('mask', 'weight'):
        others[field] = (getattr(first, field) + draw(st.sampled_from([2, 1, 3]))) % 4
    second = replace(first, **others)
    order = draw(st.sampled_from(_ORDERS))
    return [(first, second)[i] for i in order], draw(st.integers(0, 9)) == 9


@st.composite
def _changes(draw: st.DrawFn, ranks: int) -> _Pattern:
    """A call, a tensor that it reads changed in place, the call again; then changed back."""
    call, which = draw(_CALLS), draw(st.integers(1, NUM_WEIGHTS))
    what = draw(st.sampled_from(['ids', 'nodes'] * 2 + ['kept mask', 'weight', 'features']))
    step: Step = Picked()
    if what in ('kept mask', 'ids'):
        step = replace(call, edges=what, mask=which)
    elif what == 'weight':
        edges = 'kept mask' if call.edges == 'ids' else call.edges
        step = replace(call, edges=edges, weight=which)
    elif what == 'features':
        step = replace(call, takes=draw(st.sampled_from(['raw', 'gradient'])))
    there, back = Change(what, which, draw(st.integers(1, 3))), Change(what, which, 0)
    return [step, there, step, back, step][: draw(st.sampled_from([3, 5]))], draw(st.booleans())


@st.composite
def _by_id(draw: st.DrawFn, ranks: int) -> _Pattern:
    """Rows by id, where the ids of one rank alone are others in the second call."""
    lists = [draw(st.integers(0, 2)) for _ in range(ranks)]
    others = list(lists)
    odd = draw(st.integers(0, ranks - 1))
    others[odd] = (lists[odd] + draw(st.integers(1, 2))) % 3
    order = draw(st.sampled_from(_ORDERS))
    return [ById(tuple((lists, others)[i])) for i in order], draw(st.integers(0, 3)) == 3


@st.composite
def _rounded(draw: st.DrawFn, ranks: int) -> _Pattern:
    """A conv that rounds, on the features and edges of one that does not."""
    mask = draw(st.integers(0, NUM_MASKS - 1))
    call = replace(draw(_CALLS), edges='kept mask', mask=mask, takes='raw', weight=0)
    return [Rounded(mask), call, Rounded(mask), call], False


@st.composite
def _any(draw: st.DrawFn, ranks: int) -> _Pattern:
    """Any steps, some of them again."""
    parts = [draw(st.sampled_from([_calls, _changes, _by_id, _rounded]))(ranks) for _ in range(3)]
    steps = [step for part in parts for step in draw(part)[0][:3]]
    order = draw(st.permutations(range(len(steps))))
    return [steps[i] for i in order], False


_PATTERNS = {'call': _calls, 'change': _changes, 'ids': _by_id, 'round': _rounded, 'any': _any}


class Net(torch.nn.Module):
    """One or two layers of a conv."""

    def __init__(self, case: Sequence) -> None:
        super().__init__()
        make, self.takes = CONVS[case.conv]
        self.convs = torch.nn.ModuleList(make(flow=case.flow) for _ in range(case.layers))
        width = {'GCN without loops': 6, 'SAGE sum': 2}.get(case.conv, WIDTH)
        self.between = torch.nn.ModuleList(
            torch.nn.Linear(width, WIDTH) for _ in range(case.layers - 1)
        )

    def forward(self, x: Tensor, edge_index: Tensor, of_edges: dict[str, Any]) -> Tensor:
        """The last layer's rows."""
        for i, conv in enumerate(self.convs):
            x = x if i == 0 else self.between[i - 1](x).tanh()
            more = [value for name, value in of_edges.items() if name in self.takes]
            x = conv(x, edge_index, *(value for value in more if value is not None))
        return x


@dataclass(frozen=True)
class World:
    """What a program calls of pyg_sar: on one process with plain PyG nothing."""

    wrap: Callable[[torch.nn.Module], torch.nn.Module]
    rounded: Callable[[torch.nn.Module], torch.nn.Module]
    gather: Callable[[Tensor], Tensor]
    by_id: Callable[[Tensor, tuple[int, ...]], Any]


def plain_world(case: Sequence) -> World:
    """The world of one process."""
    lists = case.lists()

    def by_id(x: Tensor, of_ranks: tuple[int, ...]) -> list[Tensor]:
        return [x[lists[i]] for i in of_ranks]

    return World(lambda m: m, lambda m: m, lambda t: t, by_id)


def run(case: Sequence, data: Any, world: World) -> list[tuple[str, Tensor]]:
    """Does all steps; gives outputs and gradients, by names."""
    found: list[tuple[str, Tensor]] = []
    with torch.inference_mode() if case.in_inference else nullcontext():
        torch.manual_seed(case.seed)
        net = Net(case).double()
        for parameter in net.parameters():  # PyG leaves one of RGATConv as it finds the memory
            parameter.data.normal_(std=0.5)
        rounded = world.rounded(nn.SAGEConv(WIDTH, WIDTH).double())
        program = _Program(case, data, world, world.wrap(net), rounded)
        for i, step in enumerate(case.steps):
            found += [(f'step {i} {name}', value) for name, value in program.do(step)]
    return found


class _Program:
    def __init__(self, case: Sequence, data: Any, world: World, model: Any, rounded: Any) -> None:
        self.case, self.data, self.world, self.model = case, data, world, model
        self.rounded = rounded
        self.masks = [data[f'edge_mask{i}'].clone() for i in range(NUM_MASKS)]
        self.weights = [data[f'edge_weight{i}'].clone() for i in (1, 2, 3)]
        whole = case.graph()
        of_masks = [whole[f'edge_mask{i}'] for i in range(NUM_MASKS)]
        self.ids = [whole.edge_index[:, mask] for mask in of_masks]
        self.ids_then = [ids.clone() for ids in self.ids]
        values = {'attr': whole.edge_attr, 'type': whole.edge_type, 'weight': whole.edge_weight1}
        self.of_ids = [{key: value[mask] for key, value in values.items()} for mask in of_masks]
        self.raw = data.x.clone()
        self.nodes = data.node_mask0.clone()

    def do(self, step: Step) -> list[tuple[str, Tensor]]:
        if isinstance(step, Call):
            return self._call(step)
        if isinstance(step, Change):
            self._change(step)
        elif isinstance(step, Picked):
            picked = self.raw[self.nodes]
            number = torch.tensor(float(picked.size(0)))
            return [('number of picked', number), ('sum of picked', picked.sum(0))]
        elif isinstance(step, Rounded):
            self.rounded(self.raw, self.data.edge_index[:, self.masks[step.mask]])
        else:
            rows = self.world.by_id(self.raw, step.lists)
            return [(f'rows of rank {i}', each) for i, each in enumerate(rows)]
        return []

    def _change(self, step: Change) -> None:
        data = self.data
        which, shift = step.which, step.shift
        if step.what == 'kept mask':
            self.masks[which].copy_(data[f'edge_mask{(which + shift) % NUM_MASKS}'])
        elif step.what == 'weight':
            self.weights[which - 1].copy_(data[f'edge_weight{(which - 1 + shift) % 3 + 1}'])
        elif step.what == 'features':
            self.raw.copy_(data.other if shift else data.x)
        elif step.what == 'nodes':
            self.nodes.copy_(data[f'node_mask{shift % 3}'])
        elif 'sorted' not in CONVS[self.case.conv][1]:
            then = self.ids_then[which]
            self.ids[which].copy_(torch.stack([then[0].roll(shift), then[1]]))

    def _call(self, step: Call) -> list[tuple[str, Tensor]]:
        model, data, world = self.model, self.data, self.world
        model.train(step.mode == 'train')
        modes = {'no_grad': torch.no_grad, 'inference': torch.inference_mode}
        with modes.get(step.mode, nullcontext)():
            has_gradient = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            x = data.other if step.takes == 'other' else self.raw
            leaves = {}
            if step.takes == 'gradient':
                x = x.detach().clone()
                leaves = {'x': x.requires_grad_(has_gradient)}
            edges, of_edges, weight = self._edges(step)
            if weight is not None and step.takes == 'gradient' and step.weight == 3:
                leaves['weight'] = weight.requires_grad_(has_gradient)
            out = model(x, edges, of_edges)
            found = [('out', world.gather(out.detach()))]
            if has_gradient:
                (out * data.target[:, : out.size(1)]).sum().backward()
                for name, leaf in leaves.items():
                    if leaf.grad is not None:
                        found.append((f'gradient of {name}', world.gather(leaf.grad)))
                for name, parameter in model.named_parameters():
                    name = name.removeprefix('module.')
                    if parameter.grad is not None:
                        found.append((f'gradient of {name}', parameter.grad.clone()))
                    parameter.grad = None
        return found

    def _edges(self, step: Call) -> tuple[Tensor, dict[str, Any], Tensor | None]:
        """The edge_index, what belongs to it, and the weight as it was before a mask."""
        data, i = self.data, step.mask
        number = step.weight or int('needed' in CONVS[self.case.conv][1])
        if step.edges == 'ids':
            weight = self.of_ids[i]['weight'].clone() if number else None
            return self.ids[i], self.of_ids[i] | {'weight': weight}, weight
        weight = self.weights[number - 1] if number else None
        if step.takes == 'gradient' and step.weight == 3 and weight is not None:
            weight = weight.detach().clone()
            weight.requires_grad_(torch.is_grad_enabled())
        edges = data.edge_index
        of_edges = {'attr': data.edge_attr, 'type': data.edge_type, 'weight': weight}
        if step.edges != 'all':
            mask = self.masks[i] if step.edges == 'kept mask' else data[f'edge_mask{i}'].clone()
            edges = edges[:, mask]
            of_edges = {k: v if v is None else v[mask] for k, v in of_edges.items()}
        return edges, of_edges, weight
