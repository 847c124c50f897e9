"""Every name of torch.Tensor, and whatever makes something of a tensor, on rows of three ranks.

It gives what it gives of plain tensors on one machine, or is refused on all ranks.
"""

from __future__ import annotations

import pytest
from few import few
from names_calls import MAKERS, NAMES, SKIPPED
from names_table import Label, Verdict, faults, labels, verdicts_of

from pyg_sar.rows.registry import names

NUM_PARTS = 64
OF_A_MODE = 256

ASKED = 'asks for another class by name, as pyg_sar itself does'
TIES = 'torch does not say which of equal numbers it takes'
LENIENT = 'has a result where torch refuses the arguments or the dtype'
ZERO = 'a rank that divides by 0 raises, and the others end with it where they meet next'

_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    '__floordiv__': (ZERO, ('edge_index',)),
    '__mod__': (ZERO, ('edge_index',)),
    '__rfloordiv__': (ZERO, ('edge_index',)),
    '__rmod__': (ZERO, ('edge_index',)),
    '_is_all_true': (LENIENT, ('edge_index', 'x', 'x[:, 0]')),
    '_is_any_true': (LENIENT, ('edge_index', 'x', 'x[:, 0]')),
    'topk': (TIES, ('edge_index', 'edge_index[0]', 'y')),
    'Tensor.as_subclass(t, Tensor)': (
        ASKED,
        ('edge_attr', 'edge_index', 'edge_index[0]', 'mask', 'n_id', 'x', 'x[:, 0]', 'y'),
    ),
    'unique': (LENIENT, ('edge_index', 'x', 'x[:, 0]')),
}
LOSES = names('grad_fn saved_of_grad_fn(t) hook_of_grad_fn(t) prehook_of_grad_fn(t)')
"""Calls that lose the class, as docs/rows.md has them."""

KNOWN = {(name, kind): why for name, (why, kinds) in _KNOWN.items() for kind in kinds}
"""Calls that are neither right nor refused, by name and kind, and why."""


def _unknown(found: dict[Label, Verdict]) -> dict[Label, Verdict]:
    wrong = {label: each for label, each in faults(found).items() if label[:2] not in KNOWN}
    return {label: each for label, each in wrong.items() if label[0] not in LOSES}


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('part', few(range(NUM_PARTS), every=32))
def test_names_are_right_or_refused(part: int, world_size: int) -> None:
    found = verdicts_of(labels(part, NUM_PARTS), world_size=world_size)
    assert not _unknown(found)
    assert any(each.status == 'equal' for each in found.values())


@pytest.mark.slow
@pytest.mark.parametrize('part', range(NUM_PARTS))
def test_names_are_right_or_refused_where_a_rank_has_one_row(part: int) -> None:
    assert not _unknown(verdicts_of(labels(part, NUM_PARTS), cut='one reader'))


@pytest.mark.slow
@pytest.mark.parametrize('part', range(0, OF_A_MODE, 16))
@pytest.mark.parametrize('mode', ['inference', 'autocast'])
def test_names_are_right_or_refused_in_a_mode(mode: str, part: int) -> None:
    assert not _unknown(verdicts_of(labels(part, OF_A_MODE), mode=mode))


def test_names_are_those_of_torch() -> None:
    assert SKIPPED.isdisjoint(NAMES)
    assert LOSES | {name for name, _ in KNOWN} <= {*NAMES, *MAKERS}
