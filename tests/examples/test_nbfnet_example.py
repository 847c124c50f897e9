"""NBFNet and the ULTRA-like model on ranks: scores, losses, gradients and ranks of plain PyG."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from example_programs import EXAMPLES, example, run, torchrun
from ranks import run_as_threads
from torch import Tensor

import pyg_sar

SIZE = 120
_CASES = [
    ('nbfnet', 'sum', 'distmult', 1),
    ('nbfnet', 'sum', 'distmult', 2),
    ('nbfnet', 'pna', 'transe', 4),
    ('ultra', 'pna', 'distmult', 2),
    ('ultra', 'sum', 'distmult', 4),
]


def _results(root: str | None, name: str, **kinds: str) -> list[Tensor]:
    nbfnet = example('nbfnet')
    data: Any = nbfnet.drawn(SIZE) if root is None else pyg_sar.load_shard(root)
    torch.manual_seed(0)
    if name == 'nbfnet':
        model = nbfnet.NBFNet(data.num_relations, 6, 2, **kinds).double()
    else:
        model, data = nbfnet.Ultra(6, 2, **kinds).double(), nbfnet.with_meetings(data)
    if root is not None:
        model = pyg_sar.DistributedDataParallel(model)
    loss = nbfnet.loss_of(model, data, data.known[::9])
    loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    score = model(data, (data.edge_index, data.edge_type), data.asked[:, :2])
    (trained, ranks), *_ = nbfnet.train(model, data, 1, 32)
    return [loss.detach(), pyg_sar.gather(score.detach()), trained, ranks, *gradients]


@pytest.mark.parametrize(('name', 'aggr', 'message', 'num_ranks'), _CASES)
def test_the_results_of_plain_pyg(
    name: str, aggr: str, message: str, num_ranks: int, tmp_path: Path
) -> None:
    data = example('nbfnet').drawn(SIZE)
    pyg_sar.partition_graph(data, num_ranks, tmp_path, method='random')
    kinds = {'aggr': aggr, 'message': message}
    want = _results(None, name, **kinds)
    for found in run_as_threads(_results, num_ranks, str(tmp_path), name, **kinds):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_it_runs_as_a_program_and_finds_the_compositions(tmp_path: Path) -> None:
    command = [EXAMPLES / 'nbfnet.py', tmp_path / 'parts']
    run(*command, '--draw', 200, '--num-parts', 2)
    one, two = (run(*start, *command, '--epochs', 2) for start in ([], torchrun(2)))
    pattern = r'epoch +(\d)  loss (\d\.\d{6})  MRR (\d\.\d{4})  hits@10 (\d\.\d{4})\n'
    lines = [re.findall(pattern, output) for output in (one, two)]
    assert [line[0] for line in lines[0]] == ['1', '2']
    assert float(lines[0][-1][2]) > 0.9
    numbers = [torch.tensor([[float(n) for n in line] for line in each]) for each in lines]
    torch.testing.assert_close(*numbers, rtol=1e-3, atol=1e-3)
