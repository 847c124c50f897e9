"""How cores and GPUs are dealt out to ranks."""

from __future__ import annotations

import os

import pytest

from pyg_sar.launch.machines import Sight, have_own_gpus, own_sight, shares


def seeing(machine: str = 'a', cores: str = '0123', gpus: str = '') -> Sight:
    return Sight(machine, machine, tuple(map(int, cores)), tuple(gpus), ('lo',))


def test_own_sight() -> None:
    sight = own_sight()
    assert set(sight.cores) == os.sched_getaffinity(0)
    assert own_sight() == sight


def test_one_machine() -> None:
    found = shares([seeing()] * 3)
    assert [p.local_rank for p in found] == [0, 1, 2]
    assert {(p.num_local, p.num_threads, p.gpu) for p in found} == {(3, 1, None)}
    assert shares([seeing()] * 2)[0].num_threads == 2
    assert shares([seeing(cores='0')] * 2)[0].num_threads == 1


def test_ranks_bound_to_cores_have_them_for_themselves() -> None:
    found = shares([seeing(cores='01'), seeing(cores='23'), seeing(cores='23')])
    assert [p.num_threads for p in found] == [2, 1, 1]


def test_two_machines_in_turn() -> None:
    found = shares([seeing('a'), seeing('b'), seeing('a'), seeing('b', '01')])
    assert [p.local_rank for p in found] == [0, 0, 1, 1]
    assert [p.num_local for p in found] == [2] * 4
    assert [p.num_threads for p in found] == [2, 4, 2, 2]


@pytest.mark.parametrize(
    ('gpus', 'dealt', 'are_own'),
    [
        (['AB', 'AB'], [0, 1], True),
        (['AB', 'AB', 'AB'], [0, 1, 0], False),
        (['A', 'B'], [0, 0], True),  # bound by the launcher
        (['A', 'A'], [0, 0], False),
        (['AB', 'AB', 'CD', 'CD'], [0, 1, 0, 1], True),  # two jobs' worth on one machine
        (['AB', 'BC'], [0, 0], True),
        (['AB', 'BA'], [0, 0], True),
        (['AB', 'B', 'AB'], [0, 0, 1], False),  # B twice
        (['', ''], [None, None], False),
        (['AB', 'b:CD', 'AB'], [0, 0, 1], True),  # of another machine, b
    ],
)
def test_gpus(gpus: list[str], dealt: list[int | None], are_own: bool) -> None:
    parted = [each.rpartition(':') for each in gpus]
    ranks = [seeing(machine or 'a', gpus=of_rank) for machine, _, of_rank in parted]
    found = shares(ranks)
    assert [p.gpu for p in found] == dealt
    assert have_own_gpus(ranks, found) == are_own


def test_gpus_on_some_ranks() -> None:
    with pytest.raises(ValueError, match=r'none for ranks \[1\]'):
        shares([seeing(gpus='A'), seeing('b'), seeing(gpus='A')])
