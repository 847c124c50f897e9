"""What DistributedDataParallel refuses, and which options reach whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ddp_model import make_model
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt

from pyg_sar import DistributedDataParallel, SARConv, wrap


def _built(kwargs: dict[str, Any], make: str) -> str:
    return attempt(DistributedDataParallel, MAKES[make](), **kwargs)


MAKES: dict[str, Callable[[], torch.nn.Module]] = {
    'net': make_model,
    'no convs': lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
}


@pytest.mark.parametrize('world_size', [None, 2])
@pytest.mark.parametrize(
    ('make', 'kwargs', 'words'),
    [
        ('net', {'broadcast_buffers': True}, "'broadcast_buffers' must be False (got True)"),
        ('net', {'mode': 'parallel'}, "'mode' must be one of"),
        ('net', {'bucket_cap_mb': 0}, "'bucket_cap_mb' must be positive (got 0)"),
        ('net', {'device_ids': ['meta']}, "'device_ids' must be where the model is, ['cpu'] (got"),
        ('net', {'prefetch': 0}, "'prefetch' must be a positive int (got 0)"),
        ('no convs', {'prefetch': 2}, "'prefetch' has a meaning for message-passing convs only"),
    ],
)
def test_refused_on_all_ranks(make, kwargs, words, world_size):
    if world_size is None:
        outcomes = [_built(kwargs, make)]
    else:
        outcomes = run_ranks(_built, world_size, kwargs, make)
    assert_all_raise(outcomes, 'ValueError', words)


def test_an_unknown_option_is_an_error():
    outcomes = run_ranks(_built, 2, {'overlap': True}, 'net')
    assert_all_raise(outcomes, 'TypeError', 'overlap')


def test_an_unknown_option_is_an_error_in_one_process():
    """The same script must not fail only once it is launched on several ranks."""
    with pytest.raises(TypeError, match='overlap'):
        DistributedDataParallel(make_model(), overlap=True)


def test_broadcast_buffers_false_is_allowed(graph, tmp_path):
    assert run_ranks(_built, 2, {'broadcast_buffers': False}, 'net') == ['no error'] * 2


def _wrapped_before() -> list[str]:
    ours = DistributedDataParallel(wrap(make_model(), mode='one_shot'))
    return [m.sar_options.mode for m in ours.modules() if isinstance(m, SARConv)]


def test_a_wrapped_model():
    assert run_ranks(_wrapped_before, 2) == [['one_shot'] * 2] * 2


def test_modes_reach_the_convs():
    model = DistributedDataParallel(make_model(), mode='sequential_no_remat', prefetch=3)
    convs = [module for module in model.modules() if isinstance(module, SARConv)]
    assert [(conv.sar_options.mode, conv.sar_options.prefetch) for conv in convs] == [
        ('sequential_no_remat', 3)
    ] * 2
