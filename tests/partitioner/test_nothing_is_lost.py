"""What users change or keep is not lost: by transforms in place, by force, by killed writers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from small_graphs import attempt
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition import main

NUM_NODES = 8000


class Impute:
    """Writes zeros in the place of what is no number, as many programs do."""

    def __call__(self, data: Any) -> Any:
        data.x[data.x.isnan()] = 0.0
        data.y += 1
        return data


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 64, generator=generator)  # 2 MB: mapped where it can be
    x[torch.rand(x.shape, generator=generator) < 0.1] = torch.nan
    edges = torch.randint(NUM_NODES, (2, 3 * NUM_NODES), generator=generator)
    return Data(x=x, y=torch.arange(NUM_NODES), edge_index=edges)


@pytest.mark.parametrize('kind', ['graph.pt', 'graph.npz', 'folder'])
def test_what_a_transform_changes_in_place_is_kept(kind: str, tmp_path: Path) -> None:
    graph, source = _graph(), tmp_path / kind
    arrays = {name: value.numpy() for name, value in graph.to_dict().items()}
    if kind.endswith('.pt'):
        torch.save(graph, source)
    elif kind.endswith('.npz'):
        np.savez(source, **arrays)
    else:
        source.mkdir()
        for name, array in arrays.items():
            np.save(source / f'{name}.npy', array)
    assert graph.x.isnan().any()
    transform = f'{__name__}.Impute'
    words = [str(source), str(tmp_path / 'out'), '--num-parts', '2', '--quiet']
    assert main([*words, '--transform', transform]) == 0
    for rank in range(2):
        data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out', rank))
        assert torch.equal(data.x, graph.x[data.n_id].nan_to_num())
        assert torch.equal(data.y, graph.y[data.n_id] + 1)


def _small() -> Data:
    return Data(x=torch.ones(8, 2), edge_index=torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]))


def test_files_of_others_are_not_deleted(tmp_path: Path) -> None:
    def write(root: Path) -> None:
        pyg_sar.partition_graph(_small(), 2, root, force=True)

    root = tmp_path / 'parts'
    write(root)
    write(root)  # nothing but a partition is replaced
    (root / 'run').mkdir()
    (root / 'run' / 'model.pt').write_text('weights')
    with pytest.raises(ValueError, match=r"such as 'run/model.pt'.*would be deleted"):
        write(root)
    assert (root / 'run' / 'model.pt').read_text() == 'weights'
    pyg_sar.load_shard(root, 0)
    shutil.rmtree(root / 'run')
    write(root)


def _loaded(roots: list[str]) -> str:
    return attempt(pyg_sar.load_shard, roots[pyg_sar.comm.rank()])


def test_ranks_load_the_same_features(tmp_path: Path) -> None:
    graph, roots = _small(), [str(tmp_path / 'a'), str(tmp_path / 'b')]
    pyg_sar.partition_graph(graph, 2, roots[0], method='range')
    shutil.copytree(roots[0], tmp_path / 'copy')
    graph.x = graph.x + 1
    pyg_sar.partition_graph(graph, 2, roots[1], method='range')
    told = run_ranks(_loaded, 2, roots)
    assert all('expected the same partition on all ranks' in each for each in told), told
    assert run_ranks(_loaded, 2, [roots[0], str(tmp_path / 'copy')]) == ['no error'] * 2


def test_a_file_is_no_folder_of_checkpoints(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    torch.save(model.state_dict(), tmp_path / 'state.pt')
    with pytest.raises(ValueError, match='got the file'):
        pyg_sar.load_checkpoint(tmp_path / 'state.pt', model)
    assert pyg_sar.load_checkpoint(tmp_path / 'none', model) is None
