"""Every class of torch_geometric.nn.models: exact on a partitioned graph, or refused by name."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from graphs import awkward_graph
from model_cases import (
    _CONV,
    CASES,
    FUNCTIONS,
    NUM_NODES,
    REFUSED,
    ROWWISE,
    TOLERANCE,
    UNSUPERVISED,
    C,
    F,
    H,
)
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn import models as M

import pyg_sar
from pyg_sar.comm import all_reduce_sum, is_distributed


def test_every_class_is_decided_on() -> None:
    tested = {name.split('-')[0] for name in CASES} | {'JumpingKnowledge', 'CorrectAndSmooth'}
    tested.add('MetaLayer')  # a plain program: tests/programs/edge_model_programs.py
    decided = tested | set(REFUSED) | ROWWISE | FUNCTIONS | UNSUPERVISED
    assert set(M.classes) - decided == set()


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp('models')
    graph = awkward_graph(NUM_NODES)
    pyg_sar.partition_graph(graph, 3, root / 'metis', method='metis')
    pyg_sar.partition_graph(graph, 6, root / 'random', method='random')
    # Classes are unevenly spread: rank 0 has no node, rank 1 none of the largest class.
    parts = torch.where(graph.y == graph.y.max(), 2, 1 + torch.arange(NUM_NODES) % 2)
    pyg_sar.partition_graph(graph, 3, root / 'by class', method=parts)
    return {name: str(root / name) for name in ('metis', 'random', 'by class')}


def _run(name: str, model: nn.Module, data: Data) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the inputs that take gradients."""
    case = CASES[name]
    inputs = {key: data[key].clone().requires_grad_() for key in ('x', 'edge_weight', 'edge_attr')}
    data = copy.copy(data).update(inputs)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # that of PyG's one-hot labels
    try:
        return case.call(model.train(case.train), data), inputs
    finally:
        torch.set_default_dtype(before)


def _make(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name].make().double()


def _of_one_process(name: str) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Output, the gradient it is given, the gradients of inputs, those of parameters."""
    model = _make(name)
    out, inputs = _run(name, model, awkward_graph(NUM_NODES))
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    expected = out.detach().clone()  # GroupAddRev frees its output in backward
    if out.requires_grad:
        out.backward(grad)
    parameters = {key: _grad(value) for key, value in model.named_parameters()}
    return expected, grad, {key: _grad(value) for key, value in inputs.items()}, parameters


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _differences(name: str, root: str, mode: str) -> dict[str, float]:
    """The largest difference of each tensor on this rank."""
    expected, grad, input_grads, parameter_grads = _of_one_process(name)
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = pyg_sar.wrap(_make(name), mode=mode)
    out, inputs = _run(name, model, data)
    rows = data[CASES[name].rows]
    pairs = {'out': (expected[rows], out.detach().clone())}
    if out.requires_grad:
        out.backward(grad[rows])
    for key, value in inputs.items():
        ids = data.n_id if key == 'x' else data.e_id
        pairs[f'grad of {key}'] = input_grads[key][ids], _grad(value)
    plain = dict(_make(name).named_parameters())
    assert list(model.state_dict()) == list(_make(name).state_dict())
    for key, parameter in zip(plain, model.parameters(), strict=True):
        share = _grad(parameter).clone()
        if is_distributed():
            all_reduce_sum(share)
        pairs[f'grad of {key}'] = parameter_grads[key], share
    for key, (want, got) in pairs.items():
        assert want.shape == got.shape, (key, want.shape, got.shape)
        assert want.dtype == got.dtype, (key, want.dtype, got.dtype)
    return {
        key: (want - got).abs().max().item() if want.numel() else 0.0
        for key, (want, got) in pairs.items()
    }


def _all_differences(root: str, mode: str, names: list[str]) -> dict[str, dict[str, float]]:
    return {name: _differences(name, root, mode) for name in names}


def _check(ranks: list[dict[str, dict[str, float]]]) -> None:
    wrong = [
        (rank, name, key, value)
        for rank, found in enumerate(ranks)
        for name, differences in found.items()
        for key, value in differences.items()
        if not value <= TOLERANCE
    ]
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    'folder', ['random', *(pytest.param(f, marks=pytest.mark.slow) for f in ('metis', 'by class'))]
)
def test_exact_on_three_ranks(folders: dict[str, str], folder: str) -> None:
    names = list(CASES)
    _check(run_ranks(_all_differences, 3, folders[folder], 'sequential', names, timeout=200))


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['sequential_no_remat', 'one_shot'])
def test_exact_in_the_other_modes(folders: dict[str, str], mode: str) -> None:
    _check(run_as_threads(_all_differences, 3, folders['metis'], mode, list(CASES)))


@pytest.mark.slow
def test_exact_on_one_process_with_all_parts(folders: dict[str, str]) -> None:
    _check([_all_differences(folders['random'], 'sequential', list(CASES))])


@pytest.mark.parametrize('name', REFUSED)
def test_refused_by_name(name: str) -> None:
    make, reason = REFUSED[name]
    model = make()
    with pytest.raises(ValueError, match=f'^{name} cannot run on a partitioned graph: .*{reason}'):
        pyg_sar.wrap(model)
    inside = nn.Sequential(_CONV(), model)
    with pytest.raises(ValueError, match=f"^{name} at '1' cannot run on a partitioned graph"):
        pyg_sar.wrap(inside)
    assert type(inside[0]) is GCNConv


@pytest.mark.parametrize('name', sorted(FUNCTIONS))
def test_captum_has_no_modules(name: str) -> None:
    assert not isinstance(getattr(M, name), type)


@pytest.mark.parametrize('name', ['LightGCN-ranking', 'LINKX', 'LabelPropagation', 'RECT_L'])
def test_a_wrapped_model_is_the_plain_one_on_a_plain_graph(name: str) -> None:
    expected, *_ = _of_one_process(name)
    wrapped = pyg_sar.wrap(_make(name))
    for model in (wrapped, copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        out, _ = _run(name, model, awkward_graph(NUM_NODES))
        assert torch.equal(out, expected)


def _propagated_twice(root: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    by_hand = pyg_sar.SARConv(M.LabelPropagation(4, 0.9))
    first = by_hand(data.y, data.edge_index, data.train_mask).clone()
    second = by_hand(data.y, data.edge_index, data.train_mask)
    column = by_hand(data.y.view(-1, 1), data.edge_index, data.train_mask)
    return data.n_id, first, second, column


def test_label_propagation_by_hand_and_again(folders: dict[str, str]) -> None:
    graph = awkward_graph(NUM_NODES)
    expected = M.LabelPropagation(4, 0.9)(graph.y, graph.edge_index, graph.train_mask)
    for n_id, *found in run_ranks(_propagated_twice, 3, folders['by class']):
        for out in found:
            torch.testing.assert_close(out, expected[n_id], rtol=1e-6, atol=1e-6)  # float32


def _refusals(root: str) -> list[str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    y = data.y - (data.y == 2).long() * 3  # negative on the ranks that have class 2
    propagate = pyg_sar.wrap(M.LabelPropagation(2, 0.5))
    light = pyg_sar.wrap(M.LightGCN(NUM_NODES, 4, 1))
    rank = light(data.edge_index)
    pairs = torch.full((2, 1), NUM_NODES)
    return [
        attempt(propagate, y, data.edge_index),
        attempt(pyg_sar.wrap(M.LightGCN(NUM_NODES - 1, 4, 1)), data.edge_index),
        attempt(pyg_sar.wrap(M.LINKX(9, F, H, C, 1)), None, data.edge_index),
        attempt(light, data.edge_index, pairs),
        attempt(light.recommendation_loss, rank, rank, data.n_id),
    ]


def test_refused_on_all_ranks_with_the_reason(folders: dict[str, str]) -> None:
    words = [
        "class labels of 0 and above in 'y' (got -1)",
        'one row per node of the whole graph: 60 rows (got shape (59, 4))',
        'one row per node of the whole graph: 60 rows (got shape (9, 6))',
        "'ids' has 60, which is no node's id",
        "'node_id' must be None",
    ]
    outcomes = run_ranks(_refusals, 3, folders['by class'])
    for found, part in zip(zip(*outcomes, strict=True), words, strict=True):
        assert_all_raise(found, 'ValueError', part)
