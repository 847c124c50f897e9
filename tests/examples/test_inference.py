"""The inference example: predictions of weights from anywhere, in the order of original ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from example_programs import EXAMPLES, run, torchrun
from graphs import two_communities
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


def _graph() -> Data:
    data = two_communities(40)
    data.x, data.y = data.x.float(), torch.arange(data.num_nodes) % 4
    return data


def _model(data: Data) -> torch.nn.Module:
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, 2, 4, norm='batch_norm')
    model(data.x, data.edge_index)  # norms have statistics
    return model


def _program(*words: object) -> list[object]:
    return [EXAMPLES / 'inference.py', *words, '--hidden', 16, '--layers', 2]


def _infer(folder: Path, *words: object, ranks: int = 1) -> None:
    run(*(torchrun(ranks) if ranks > 1 else []), *_program(*words), folder=folder)


@pytest.mark.slow
def test_weights_of_plain_pyg_and_a_checkpoint(tmp_path: Path) -> None:
    data = _graph()
    model = _model(data)
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    torch.save(model.state_dict(), tmp_path / 'weights.pt')
    optimizer = torch.optim.Adam(model.parameters())
    pyg_sar.save_checkpoint(tmp_path / 'run', model, optimizer, epoch=3)
    _infer(tmp_path, 'parts', 'weights.pt', 'one.npy', '--probabilities')
    _infer(tmp_path, 'parts', 'run', 'two.npy', ranks=2)
    in_turns = ['-m', 'pyg_sar', 'run', '--in-turns', '--memory', '1MB', '--spill', '.']
    run(*in_turns, *_program('parts', 'weights.pt', 'three.npy'), folder=tmp_path)
    with torch.no_grad():
        want = model.eval()(data.x, data.edge_index).softmax(dim=-1)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / 'one.npy')), want)
    for name in ('two.npy', 'three.npy'):
        assert np.array_equal(np.load(tmp_path / name), want.argmax(dim=-1).numpy())
