"""Every class of torch_geometric.nn.models: exact on a partitioned graph, or refused by name."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, cut_of, whole
from conv_case import make
from conv_graphs import GRAPHS
from exact import Result, reference, run_case, step
from few import few
from graphs import awkward_graph
from hetero_graphs import REVIEWS, WRITES, assignment, hetero_graph
from hetero_models import CASES as HETERO_CASES
from model_cases import _CONV, FUNCTIONS, NUM_NODES, OF_MOLECULES, REFUSED, ROWWISE, UNSUPERVISED
from model_cases import CASES as MODEL_CASES
from norm_models import CASES as NORM_CASES
from outcome import assert_exact
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, MessagePassing, SAGEConv
from torch_geometric.nn import models as M
from unsupervised_cases import CASES as UNSUPERVISED_CASES
from unsupervised_cases import given_of

import pyg_sar


def test_every_class_is_decided_on() -> None:
    tested = {name.split('-')[0] for name in MODEL_CASES} | {'JumpingKnowledge', 'CorrectAndSmooth'}
    tested.add('MetaLayer')  # a plain program: tests/programs/mesh_programs.py
    decided = tested | set(REFUSED) | ROWWISE | FUNCTIONS | UNSUPERVISED | OF_MOLECULES
    assert set(M.classes) - decided == set()
    assert not any(isinstance(getattr(M, name), type) for name in FUNCTIONS)  # those of captum


Roots = dict[str, dict[str, str]]


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    """By cut and graph; where they are unequal, a rank has no node, or none of a class or type."""
    folder, graph = tmp_path_factory.mktemp('models'), GRAPHS['plain']()
    by_class = torch.where(graph.y == graph.y.max(), 2, 1 + torch.arange(NUM_NODES) % 2)
    cuts = {'metis': (3, ['metis'] * 2), 'random': (12, ['random'] * 2)}
    cuts['unequal'] = 3, [by_class, assignment(3)]
    found: Roots = {}
    for name, (num_parts, methods) in cuts.items():
        for of, method in zip(('plain', 'papers'), methods, strict=True):
            root = found.setdefault(name, {})[of] = str(folder / f'{name}-{of}')
            pyg_sar.partition_graph(GRAPHS[of](), num_parts, root, method=method)
    return found


ALL = MODEL_CASES | UNSUPERVISED_CASES | HETERO_CASES | NORM_CASES


def _run(names: list[str], roots: dict[str, str], how: dict[str, Any]) -> dict[str, Result]:
    found = {}
    for name in names:
        case = ALL[name]
        has_convs = any(isinstance(m, MessagePassing) for m in make(case).modules())
        found[name] = run_case(case, roots[case.graph], **(how if has_convs else {}))
    return found


def _check(results: list[dict[str, Result]]) -> None:
    for name in results[0]:
        assert_exact(name, [result[name] for result in results])


NAMES = list(ALL)
FEW = [n for cases in (MODEL_CASES, UNSUPERVISED_CASES, NORM_CASES) for n in few(cases, every=4)]


@pytest.mark.parametrize('name', [*FEW, *few(HETERO_CASES, every=2)])
def test_exact(roots: Roots, name: str) -> None:
    """Output, gradients of inputs and of parameters, and buffers."""
    _check(run_as_threads(_run, 3, [name], roots['unequal'], {}))


@pytest.mark.parametrize('name', few(HETERO_CASES))
def test_exact_in_one_process(roots: Roots, name: str) -> None:
    _check([_run([name], roots['random'], {})])


PROCESSES: list[tuple[int, str, dict[str, Any]]] = [
    *((3, cut, {}) for cut in ('metis', 'random', 'unequal')),
    *((3, 'metis', {'mode': mode}) for mode in ('sequential_no_remat', 'one_shot')),
    *((size, 'random', {}) for size in (2, 4)),
]


@pytest.mark.slow
@pytest.mark.parametrize(('world_size', 'cut', 'how'), PROCESSES)
def test_exact_on_processes(roots: Roots, world_size: int, cut: str, how: dict[str, Any]) -> None:
    _check(run_ranks(_run, world_size, NAMES, roots[cut], how, timeout=500))


@pytest.mark.slow
def test_all_in_one_process(roots: Roots) -> None:
    _check([_run(NAMES, roots['random'], {})])


@pytest.mark.parametrize('name', REFUSED)
def test_refused_by_name(name: str) -> None:
    make, reason = REFUSED[name]
    model = make()
    with pytest.raises(ValueError, match=f'^{name} .*{reason}'):
        pyg_sar.DistributedDataParallel(model)
    inside = nn.Sequential(_CONV(), model)
    with pytest.raises(ValueError, match=f"^{name} at '1'"):
        pyg_sar.DistributedDataParallel(inside)
    assert type(inside[0]) is GCNConv


@pytest.mark.parametrize('name', ['LightGCN-ranking', 'LINKX', 'RECT_L', *UNSUPERVISED_CASES])
def test_a_wrapped_model_is_the_plain_one_on_a_plain_graph(name: str) -> None:
    case = ALL[name]
    with case.during():
        wrapped = pyg_sar.DistributedDataParallel(make(case))
        for model in (wrapped, copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
            found = step(case, model, GRAPHS['plain']())
            assert all(torch.equal(found[key], value) for key, value in reference(case).items())


@as_one_process(graph=awkward_graph, cut='empty part', by='processes', tolerance=1e-6)
def test_label_propagation_by_hand_and_again(data: Any, wrap: Wrap) -> list[Tensor]:
    """In float32, of labels and of a column of them."""
    model = wrap(M.LabelPropagation(4, 0.9))
    first = model(data.y, data.edge_index, data.train_mask).clone()
    second = model(data.y, data.edge_index, data.train_mask)
    return [first, second, model(data.y.view(-1, 1), data.edge_index, data.train_mask)]


def _other_relation(root: str) -> str:
    data = pyg_sar.load_shard(root)
    rel = WRITES if pyg_sar.comm.ranks.rank() == 0 else REVIEWS
    conv = pyg_sar.SARConv(SAGEConv((4, 6), 5).double())
    return attempt(conv, (data['author'].x, data['paper'].x), data[rel].edge_index)


def test_ranks_that_walk_different_relations_raise() -> None:
    outcomes = run_as_threads(_other_relation, 2, cut_of(hetero_graph, 2, 'metis'))
    assert_all_raise(outcomes, 'ValueError', 'author__writes__paper', 'author__reviews__paper')


# Scores and recommendations of unsupervised models: those of plain PyG


@pytest.mark.parametrize('cut', ['uneven', 'empty part'])
@as_one_process(graph=awkward_graph, tolerance=1e-12)
def test_scores(data: Any, wrap: Wrap, cut: str) -> list[Any]:
    given, x, y = given_of(data), whole(data.x), whole(data.y)
    model, infomax = (wrap(make(ALL[name])) for name in ('GAE', 'DeepGraphInfomax'))
    with torch.no_grad():
        z = model.encode(data.x, data.edge_index)
        pairs = given.pos, whole(data.edge_index)
        scores = [model.test(z, each, given.neg) for each in pairs]
    return [*scores, infomax.test(x, y, x[:9], y[:9]), list(model.parameters())]


def _recommended(root: str) -> None:
    graph, data = awkward_graph(), pyg_sar.load_shard(root)
    plain, wrapped = (make(ALL['LightGCN links']) for _ in range(2))
    model = pyg_sar.DistributedDataParallel(wrapped)
    want = plain.recommend(graph.edge_index, k=3)
    assert torch.equal(pyg_sar.gather(model.recommend(data.edge_index, k=3)), want)
    some = {'src_index': torch.tensor([7, 3]), 'dst_index': torch.arange(5, 20)}
    want = plain.recommend(graph.edge_index, k=2, **some)
    assert torch.equal(model.recommend(data.edge_index, k=2, **some), want)
    assert torch.equal(model.recommend(graph.edge_index, k=2, **some), want)


def test_recommendations_are_ids_of_the_whole_graph() -> None:
    root = cut_of(awkward_graph, 3, 'empty part')
    run_as_threads(_recommended, 3, root)
    _recommended(root)
