"""Whatever the graph: one thing wrong in it is an error that names it, and nothing is written.

With PYG_SAR_EXAMPLES=2000 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from drawn_graphs import Drawn, examples, graphs
from hypothesis import assume, given
from hypothesis import strategies as st

from pyg_sar import partition_graph

pytestmark = [
    pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta'),
    # torch's own, of nested and quantized tensors
    pytest.mark.filterwarnings('ignore:.*(nested tensors|quantiz|UntypedStorage|TypedStorage)'),
]


def _store(drawn: Drawn, key: Any) -> Any:
    return drawn.store(drawn.data, key)


def _with_edge(drawn: Drawn, src: int, dst: int) -> Callable[[Any], None]:
    def change(key: Any) -> None:
        edge = torch.tensor([[src], [dst]])
        _store(drawn, key).edge_index = torch.cat([drawn.edges[key], edge], dim=1)
        for name, value in drawn.edge_attrs[key].items():  # which shall not be the reason
            _store(drawn, key)[name] = torch.zeros(drawn.edges[key].size(1) + 1, *value.shape[1:])

    return change


def _bad_edge_index(drawn: Drawn, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(key: Any) -> None:
        _store(drawn, key).edge_index = make(drawn.edges[key])

    return change


EDGE_INDICES: dict[str, Callable[[Any], Any]] = {
    'floats': lambda e: e.float(),
    'complex': lambda e: e.to(torch.complex64),
    'bool': lambda e: e > 0,
    'unsigned': lambda e: e.to(torch.uint32),
    'three rows': lambda e: torch.cat([e, e[:1]]),
    'one row': lambda e: e[0],
    'a batch': lambda e: e[None],
    'a number': lambda e: torch.tensor(3),
    'sparse': lambda e: torch.ones(2, 3).long().to_sparse(),
    'csr': lambda e: torch.ones(2, 3).long().to_sparse_csr(),
    'a list': lambda e: e.tolist(),
    'numpy': lambda e: e.numpy(),
    'nothing': lambda e: None,
    'meta': lambda e: e.to('meta'),
}

VALUES: dict[str, Callable[[int], Any]] = {
    'a row too many': lambda count: torch.zeros(count + 1, 2),
    'a number': lambda count: torch.tensor(1.0),
    'a list': lambda count: [[1.0]] * count,
    'a dict': lambda count: {'a': 1},
    'text': lambda count: 'text',
    'meta': lambda count: torch.zeros(count, 2, device='meta'),
    'sparse, a row too many': lambda count: torch.ones(count + 1, 2).to_sparse(),
    'sparse, unsigned': lambda count: torch.sparse_coo_tensor(
        torch.zeros(2, 1).long(),
        torch.ones(1).to(torch.uint16),
        (count + 1, 2),
        check_invariants=False,
    ),
}


KINDS = [
    *('high source', 'high destination', 'negative', 'edge_index', 'node value', 'edge value'),
    *('reserved', 'num_nodes', 'num_parts', 'NaN', 'parts', 'no type'),
]


@st.composite
def _broken(draw: st.DrawFn) -> tuple[Drawn, list[str], dict[str, Any]]:
    """A graph with one thing wrong, what the error must name, and options."""
    drawn = draw(graphs())
    node_key = draw(st.sampled_from(sorted(drawn.num_nodes, key=str)))
    edge_key = draw(st.sampled_from(sorted(drawn.edges, key=str)))
    src, dst = (None, None) if edge_key is None else (edge_key[0], edge_key[2])
    options: dict[str, Any] = {'num_parts': drawn.num_parts}
    for key, count in drawn.num_nodes.items():  # else a larger id is one more node
        _store(drawn, key).num_nodes = count
    kind = draw(st.sampled_from(KINDS))
    if kind == 'high source':
        _with_edge(drawn, drawn.num_nodes[src], 0)(edge_key)
    elif kind == 'high destination':
        assume(drawn.num_nodes[src])
        _with_edge(drawn, 0, drawn.num_nodes[dst])(edge_key)
    elif kind == 'negative':
        _with_edge(drawn, *draw(st.sampled_from([(-1, 0), (0, -1), (-(2**40), 0)])))(edge_key)
        assume(drawn.num_nodes[src] and drawn.num_nodes[dst])
    elif kind == 'edge_index':
        _bad_edge_index(drawn, EDGE_INDICES[draw(st.sampled_from(sorted(EDGE_INDICES)))])(edge_key)
    elif kind == 'node value':
        name = draw(st.sampled_from(['x', 'pos', 'train_mask', 'batch', 'node_type']))
        make = VALUES[draw(st.sampled_from(sorted(VALUES)))]
        _store(drawn, node_key)[name] = make(drawn.num_nodes[node_key])
        return drawn, _quoted(name, node_key), options
    elif kind == 'edge value':
        name = draw(st.sampled_from(['edge_attr', 'edge_weight', 'edge_type']))
        make = VALUES[draw(st.sampled_from(sorted(VALUES)))]
        _store(drawn, edge_key)[name] = make(drawn.edges[edge_key].size(1))
        return drawn, _quoted(name, edge_key), options
    elif kind == 'reserved':
        name = draw(st.sampled_from(['n_id', 'e_id']))
        _store(drawn, edge_key)[name] = torch.arange(drawn.edges[edge_key].size(1))
        return drawn, _quoted(name, edge_key), options
    elif kind == 'num_nodes':
        _store(drawn, node_key).num_nodes = draw(st.sampled_from([-1, 2.5, '3', True, [4]]))
        return drawn, _quoted('num_nodes', node_key), options
    elif kind == 'num_parts':
        total = sum(drawn.num_nodes.values())
        options['num_parts'] = draw(st.sampled_from([0, -1, 2.0, '2', None, total + 1]))
        return drawn, ["'num_parts'"], options
    elif kind == 'NaN':
        count = drawn.num_nodes[node_key]
        assume(count)
        x = torch.zeros(count, 2)
        x[draw(st.integers(0, count - 1)), 1] = torch.nan
        for key in drawn.num_nodes:  # whose own NaNs shall not be the reason
            _store(drawn, key).pop('x', None)
        _store(drawn, node_key).x = x.to_sparse() if draw(st.booleans()) else x
        return drawn, _quoted('x', node_key), {**options, 'check_nan': True}
    elif kind == 'parts':
        parts = torch.cat(list(drawn.parts.values()))
        shift = drawn.num_parts
        bad = [parts[1:], parts + shift, parts - shift, parts.double(), parts == 0, parts[:, None]]
        return drawn, ["the tensor 'method'"], {**options, 'method': draw(st.sampled_from(bad))}
    else:
        assume(edge_key is not None)
        drawn.data['a', 'to', 'nowhere'].edge_index = torch.zeros(2, 0).long()
        return drawn, ["'nowhere'"], options
    return drawn, _quoted('edge_index', edge_key), options


def _quoted(name: str, key: Any) -> list[str]:
    """What the message must hold; of a heterogeneous graph with the type."""
    return [f"'{name}'"] if key is None else [f"'{name}'", repr(key)]


def _check_refused(drawn: Drawn, told: list[str], options: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        options = {'method': 'random', **options}
        with pytest.raises((ValueError, TypeError)) as caught:
            partition_graph(drawn.data, root=Path(folder) / 'parts', **options)
        message = str(caught.value)
        assert all(part in message for part in told), (message, told)
        assert '(got' in message, message
        assert list(Path(folder).iterdir()) == []


@pytest.mark.slow
@examples(50)
@given(_broken())
def test_what_is_wrong_is_named(broken):
    _check_refused(*broken)
