"""What a sharding knows of rows of other ranks takes no memory for each of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from on_ranks import on_threads
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.comm.ranks import current, rank, world_size
from pyg_sar.rows.sharding import Sharding

TOTAL = 1_000_000


def _sharding(total: int = TOTAL) -> Sharding:
    """Rows that are dealt out in an order that looks random."""
    own = torch.arange(rank(), total, world_size())
    ids = (own * 7_919 + 5) % total  # 7919 is a prime: each row once
    return Sharding(ids.numel(), what='rows', ids=ids, total=total)


def _tensors(value: Any, seen: set[Sharding]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Sharding) and value not in seen:
        seen.add(value)
        yield from _tensors(list(vars(value).values()), seen)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()), seen)
    elif isinstance(value, partial):
        yield from _tensors(value.args, seen)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each, seen)


class _Longest(TorchDispatchMode):
    """The most bytes that a result of an operation has."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.num_bytes = max([self.num_bytes, *(t.nbytes for t in _tensors(out, set()))])
        return out


def _check_memory(sharding: Sharding) -> None:
    kept = [t.numel() for t in _tensors(sharding, set())]
    assert kept
    assert max(kept) <= TOTAL // world_size() + 1_000


@on_threads(4)
def test_a_rank_keeps_nothing_for_the_rows_of_others():
    sharding = _sharding()
    asked = torch.cat([sharding.ids(torch.device('cpu'))[::1000], torch.tensor([-1, 0, 1, TOTAL])])
    with _Longest() as longest:
        found = sharding.local_index(asked)
    assert 0 < longest.num_bytes <= 8 * (TOTAL // world_size() + 1_000)
    assert found[:-4].tolist() == list(range(0, sharding.own, 1000))
    assert found[[-4, -1]].tolist() == [-1, -1]
    _check_memory(sharding)


@on_threads(4)
def test_a_selection_keeps_nothing_for_the_rows_of_others():
    sharding = _sharding()
    ids = sharding.ids(torch.device('cpu'))
    selected = sharding.selected(ids % 3 == 1)  # the places of 1, 4, 7 ... are 0, 1, 2 ...
    with _Longest() as longest:
        places = selected.ids(ids.device)
    assert 0 < longest.num_bytes <= 8 * (TOTAL // world_size() + 1_000)
    assert torch.equal(places, ids[ids % 3 == 1] // 3)
    _check_memory(selected)


@on_threads(3)
def test_where_rows_of_the_whole_are():
    sharding = _sharding(10)
    ids = sharding.ids(torch.device('cpu')).tolist()
    asked = torch.arange(-11, 12).view(-1, 1)
    want = [[ids.index(i) if i in ids else -1] for i in range(-11, 12)]
    assert sharding.local_index(asked).tolist() == want
    assert sharding.local_index(asked.int().t()).tolist() == torch.tensor(want).t().tolist()


@on_threads(3)
def test_a_rank_without_rows():
    ids = torch.arange(4 if rank() == 1 else 0)
    sharding = Sharding(ids.numel(), what='rows', ids=ids, total=4)
    want = [-1, 0, 3, -1] if rank() == 1 else [-1] * 4
    assert sharding.local_index(torch.tensor([-1, 0, 3, 4])).tolist() == want
    picked = sharding.selected(ids > 1)
    assert picked.ids(ids.device).tolist() == ([0, 1] if rank() == 1 else [])


def _odd(sharding: Sharding) -> Tensor:
    """A new mask of the rows with odd ids."""
    return sharding.ids(torch.device('cpu')) % 2 == 1


SAME: dict[str, Callable[[Sharding], list[Sharding]]] = {
    'the ids': lambda s: [s, _sharding(12)],
    'masks': lambda s: [s.selected(_odd(s)), s.selected(_odd(s))],
    'masks of others': lambda s: [x.selected(_odd(x)) for x in (s, _sharding(12))],
    'repeated': lambda s: [s.times(6), _sharding(12).times(2).times(3)],
    'joined': lambda s: [s.joined((s,)).joined((s.times(2),)), s.joined((s, s.times(2)))],
    'of nobody knows which': lambda s: [s.selected(torch.ones(s.own) > 0) for _ in range(2)],
}
OTHERS: dict[str, Callable[[Sharding], list[Sharding]]] = {
    'other ids': lambda s: [s, Sharding(4, what='rows', ids=torch.arange(4), total=12)],
    'a mask of one rank': lambda s: [
        s.selected(_odd(s)),
        s.selected(_odd(s) if rank() else _odd(s).flip(0)),
    ],
    'as many times': lambda s: [s.times(2), s.joined((s,))],
    'another order': lambda s: [s.joined((s.times(2),)), s.times(2).joined((s,))],
    'of nobody knows which': lambda s: [s, Sharding(4, what='rows', total=12)],
}


def _answers(pairs: dict[str, Callable[[Sharding], list[Sharding]]]) -> dict[str, bool]:
    found = {}
    for name, make in pairs.items():
        is_known = name != 'of nobody knows which'
        one, other = make(_sharding(12) if is_known else Sharding(4, what='rows', total=12))
        assert one is not other
        with mock.patch.object(current(), 'gather_texts', wraps=current().gather_texts) as asked:
            found[name] = one.is_same(other)
            assert one.is_same(other) == found[name]
        assert asked.call_count == 1, name
    return found


@on_threads(3)
def test_what_is_made_alike_is_the_same_after_one_vote():
    assert _answers(SAME) == dict.fromkeys(SAME, True)
    assert _answers(OTHERS) == dict.fromkeys(OTHERS, False)


@on_threads(3)
def test_ids_are_found_once():
    sharding, cpu = _sharding(12), torch.device('cpu')
    selected = sharding.selected(_odd(sharding))
    want = selected.times(2).ids(cpu)
    with mock.patch.object(current(), 'all_to_all', side_effect=AssertionError):
        assert selected.ids(cpu) is selected.ids(cpu)
        assert torch.equal(selected.times(2).ids(cpu), want)


@on_threads(3)
def test_a_copy_by_pickle_knows_the_ids():
    sharding = _sharding(12)
    selected = sharding.times(2).selected(_odd(sharding.times(2)))
    copy = pickle.loads(pickle.dumps(selected))
    assert repr(copy) == repr(selected)
    assert torch.equal(copy.ids(torch.device('cpu')), selected.ids(torch.device('cpu')))
    assert copy.is_same(selected)
