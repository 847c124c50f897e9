"""Every class of torch_geometric.nn.models: exact on a partitioned graph, or refused by name."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from graphs import awkward_graph
from model_cases import (
    _CONV,
    AT_FORWARD,
    CASES,
    FUNCTIONS,
    NUM_NODES,
    OF_MOLECULES,
    REFUSED,
    ROWWISE,
    TOLERANCE,
    UNSUPERVISED,
)
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, MessagePassing
from torch_geometric.nn import models as M

import pyg_sar


def test_every_class_is_decided_on() -> None:
    tested = {name.split('-')[0] for name in CASES} | {'JumpingKnowledge', 'CorrectAndSmooth'}
    tested.add('MetaLayer')  # a plain program: tests/programs/edge_model_programs.py
    decided = (
        tested | set(REFUSED) | set(AT_FORWARD) | ROWWISE | FUNCTIONS | UNSUPERVISED | OF_MOLECULES
    )
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
    """The largest difference of each tensor."""
    expected, grad, input_grads, parameter_grads = _of_one_process(name)
    made = _make(name)
    options = {'mode': mode} if any(isinstance(m, MessagePassing) for m in made.modules()) else {}
    model = pyg_sar.DistributedDataParallel(made, **options).module
    assert list(model.state_dict()) == list(_make(name).state_dict())
    out, inputs = _run(name, model, pyg_sar.load_shard(root))
    found = {'out': pyg_sar.gather(out.detach().clone())}
    if out.requires_grad:
        (out * grad).sum().backward()
    found |= {key: pyg_sar.gather(_grad(value)) for key, value in inputs.items()}
    found |= {key: _grad(p) for key, p in model.named_parameters()}
    wanted = {'out': expected, **input_grads, **parameter_grads}
    assert found.keys() == wanted.keys()
    for key, want in wanted.items():
        assert want.shape == found[key].shape, (key, want.shape, found[key].shape)
        assert want.dtype == found[key].dtype, (key, want.dtype, found[key].dtype)
    return {
        key: (want - found[key]).abs().max().item() if want.numel() else 0.0
        for key, want in wanted.items()
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


def _at_forward(root: str, name: str) -> str:
    case = AT_FORWARD[name]
    model = pyg_sar.wrap(case.make().double())
    return attempt(case.call, model, pyg_sar.load_shard(root))


@pytest.mark.parametrize('name', AT_FORWARD)
def test_refused_at_the_forward(folders: dict[str, str], name: str) -> None:
    outcomes = run_as_threads(_at_forward, 3, folders['random'], name)
    assert_all_raise(outcomes, 'ValueError', 'of rows that are spread over the ranks')


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


def _propagated_twice(root: str) -> list[Tensor]:
    data = pyg_sar.load_shard(root)
    by_hand = pyg_sar.SARConv(M.LabelPropagation(4, 0.9))
    first = by_hand(data.y, data.edge_index, data.train_mask).clone()
    second = by_hand(data.y, data.edge_index, data.train_mask)
    column = by_hand(data.y.view(-1, 1), data.edge_index, data.train_mask)
    return [pyg_sar.gather(each) for each in (first, second, column)]


def test_label_propagation_by_hand_and_again(folders: dict[str, str]) -> None:
    graph = awkward_graph(NUM_NODES)
    expected = M.LabelPropagation(4, 0.9)(graph.y, graph.edge_index, graph.train_mask)
    for found in run_ranks(_propagated_twice, 3, folders['by class']):
        for out in found:
            torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)  # float32
