"""Norms of messages: their statistics are those of the messages of all edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, parallel
from few import few
from graphs import awkward_graph
from norm_models import GIVEN, NORMS
from torch import Tensor
from torch_geometric.nn import MessagePassing


class NormInMessage(MessagePassing):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        # Random numbers: nothing could be compared.
        return torch.nn.functional.dropout(self.norm(x_j), 1e-9).tanh()


def _outputs(data: Any, wrap: Wrap, name: str, modes: tuple[bool, ...], mode: str) -> list[Tensor]:
    """Of forwards in training or in evaluation, one after another; and the buffers."""
    conv: Any = NormInMessage(NORMS[name]()).double()
    if name == 'BatchNorm1d':
        conv.norm.running_mean.fill_(0.3)
        conv.norm.running_var.fill_(2.0)
    model = parallel(conv, wrap, mode=mode)
    found = [model.train(each)(data.x, data.edge_index).detach() for each in modes]
    return [*found, *conv.buffers()]


@pytest.mark.parametrize('name', sorted(set(NORMS) - set(GIVEN)))
def test_norms_in_messages(name: str) -> None:
    for modes in ((True,), (False,)):
        assert_alike(_outputs, name, modes, 'sequential', graph=awkward_graph, tolerance=1e-12)


@pytest.mark.parametrize('modes', [(True,), (False,), (False, True), (False, False)])
@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
def test_batch_norm_in_a_message(modes: tuple[bool, ...], mode: str) -> None:
    """At once and after an evaluation."""
    assert_alike(
        _outputs, 'BatchNorm1d', modes, mode, graph=awkward_graph, ranks=(1, 3), tolerance=1e-12
    )
