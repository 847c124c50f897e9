"""Every class of torch_geometric.nn.models: exact on a partitioned graph, or refused by name."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_case import make
from conv_graphs import GRAPHS
from exact import Result, reference, run_case, step
from few import few
from graphs import awkward_graph
from hetero_graphs import REVIEWS, WRITES, assignment, hetero_graph
from hetero_models import CASES as HETERO_CASES
from hetero_models import MODELS as HETERO_MODELS
from hetero_models import with_shapes
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

import pyg_sar


def test_every_class_is_decided_on() -> None:
    tested = {name.split('-')[0] for name in MODEL_CASES} | {'JumpingKnowledge', 'CorrectAndSmooth'}
    tested.add('MetaLayer')  # a plain program: tests/programs/mesh_programs.py
    decided = tested | set(REFUSED) | ROWWISE | FUNCTIONS | UNSUPERVISED | OF_MOLECULES
    assert set(M.classes) - decided == set()


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
        form = 'inner' if case.graph == 'plain' else 'parallel' if how else 'wrapped'
        has_convs = any(isinstance(m, MessagePassing) for m in make(case).modules())
        options = {'form': form, **how} if has_convs else {'form': form}
        found[name] = run_case(case, roots[case.graph], **options)
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


@pytest.mark.slow
@pytest.mark.parametrize('cut', ['metis', 'random', 'unequal'])
def test_exact_on_processes(roots: Roots, cut: str) -> None:
    _check(run_ranks(_run, 3, NAMES, roots[cut], {}, timeout=500))


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['sequential_no_remat', 'one_shot'])
def test_exact_in_the_other_modes(roots: Roots, mode: str) -> None:
    _check(run_ranks(_run, 3, NAMES, roots['metis'], {'mode': mode}, timeout=500))


@pytest.mark.slow
def test_one_shot_without_data_parallel(roots: Roots) -> None:
    how = {'mode': 'one_shot', 'form': 'wrapped'}
    _check(run_as_threads(_run, 3, ['hetero: GAT'], roots['unequal'], how))


@pytest.mark.slow
@pytest.mark.parametrize('world_size', [1, 2, 4])
def test_exact_on_other_numbers_of_ranks(roots: Roots, world_size: int) -> None:
    if world_size == 1:
        _check([_run(NAMES, roots['random'], {})])
    else:
        _check(run_ranks(_run, world_size, NAMES, roots['random'], {}, timeout=500))


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


@pytest.mark.parametrize('name', sorted(FUNCTIONS))
def test_captum_has_no_modules(name: str) -> None:
    assert not isinstance(getattr(M, name), type)


@pytest.mark.parametrize('name', ['LightGCN-ranking', 'LINKX', 'RECT_L', *UNSUPERVISED_CASES])
def test_a_wrapped_model_is_the_plain_one_on_a_plain_graph(name: str) -> None:
    case = ALL[name]
    with case.during():
        wrapped = pyg_sar.DistributedDataParallel(make(case))
        for model in (wrapped, copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
            found = step(case, model, GRAPHS['plain']())
            assert all(torch.equal(found[key], value) for key, value in reference(case).items())


def _propagated_twice(root: str) -> list[Tensor]:
    data = pyg_sar.load_shard(root)
    by_hand = pyg_sar.SARConv(M.LabelPropagation(4, 0.9))
    first = by_hand(data.y, data.edge_index, data.train_mask).clone()
    second = by_hand(data.y, data.edge_index, data.train_mask)
    column = by_hand(data.y.view(-1, 1), data.edge_index, data.train_mask)
    return [pyg_sar.gather(each) for each in (first, second, column)]


def test_label_propagation_by_hand_and_again(roots: Roots) -> None:
    graph = awkward_graph(NUM_NODES)
    expected = M.LabelPropagation(4, 0.9)(graph.y, graph.edge_index, graph.train_mask)
    for found in run_ranks(_propagated_twice, 3, roots['unequal']['plain']):
        for out in found:
            torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)  # float32


@pytest.mark.filterwarnings('ignore:There exist node types')
def test_wrap_takes_every_conv_and_keeps_the_keys() -> None:
    for name in ('SAGE', 'mixed', 'to_hetero', 'HeteroDictLinear'):
        plain, model = (with_shapes(HETERO_MODELS[name]()) for _ in range(2))
        pyg_sar.DistributedDataParallel(model)
        num_convs = sum(hasattr(m, 'propagate') for m in plain.modules())
        assert sum(isinstance(m, pyg_sar.SARConv) for m in model.modules()) == num_convs
        assert list(model.state_dict()) == list(plain.state_dict())
        model.load_state_dict(plain.state_dict())


def _other_relation(root: str) -> str:
    data = pyg_sar.load_shard(root)
    rel = WRITES if pyg_sar.comm.ranks.rank() == 0 else REVIEWS
    conv = pyg_sar.SARConv(SAGEConv((4, 6), 5).double())
    return attempt(conv, (data['author'].x, data['paper'].x), data[rel].edge_index)


def test_ranks_that_walk_different_relations_raise(tmp_path: Path) -> None:
    pyg_sar.partition_graph(hetero_graph(), 2, tmp_path / 'parts')
    outcomes = run_as_threads(_other_relation, 2, str(tmp_path / 'parts'))
    assert_all_raise(outcomes, 'ValueError', 'author__writes__paper', 'author__reviews__paper')
