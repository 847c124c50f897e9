"""Which columns of a table of edges hold the ends: by their names, and by those of types of nodes.

A name that says it plainly wins over a word in another name. What may be read in two ways, and two
columns that may be of two kinds of nodes, are an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

_ENDS = {'src', 'source', 'from'}, {'dst', 'target', 'to', 'destination'}
_OTHER_ENDS = ('u', 'v'), ('i', 'j'), ('row', 'col'), ('head', 'tail'), ('subject', 'object')
_OF_NODES = {*re.findall(r'\w+', 'node nodes n v vertex id ids idx index end endpoint entity')}
_OF_IDS = _OF_NODES | {*re.findall(r'\w+', 'uuid key name code no nr num number address account')}
_OF_IDS |= _ENDS[0] | _ENDS[1]
_OF_VALUES = {
    *re.findall(
        r'\w+',
        'valid date time timestamp ts year month day hour start score weight label value type kind '
        'class price cost amount count size rank rating prob age degree lat lon latitude longitude '
        'feature feat attr flag f t w x y z',
    )
}
"""Words of columns that hold no ids, such as valid_from and score1."""


def _words(name: str) -> set[str]:
    return {*map(str.lower, re.findall(r'[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_A-Za-z]+', name))}


def _is_of(name: str, type_: str) -> bool:
    """Whether a column is called as the ids of a type of nodes, such as user_id of users."""
    words, of_type = ({word.rstrip('s') for word in _words(text)} for text in (name, type_))
    return of_type <= words and all(w in _OF_IDS or w.isdigit() for w in words - of_type)


def _candidates(names: Sequence[str], types: tuple[str, str] | None) -> list[tuple[int, int]]:
    """The pairs of columns that may be sources and destinations: of those said most plainly."""
    whole, words = [name.strip().lower() for name in names], [*map(_words, names)]
    numbered = [
        (at, names.index(other))
        for at, name in enumerate(names)
        if (other := re.sub(r'1(?=\D*$)', '2', name)) != name and names.count(other) == 1
    ]
    plain = [
        (a, b)
        for a, b in _pairs([{name} for name in whole])
        if min(a, b) < 2 or {whole[a], whole[b]} != {'from', 'to'}  # which may be years
    ]
    plain += [(whole.index(a), whole.index(b)) for a, b in _OTHER_ENDS if {a, b} <= {*whole}]
    plain += [pair for pair in numbered if words[pair[0]] - {'1'} <= _OF_NODES]
    if types is not None and types[0] != types[1]:
        of_types = [[at for at, name in enumerate(names) if _is_of(name, t)] for t in types]
        if [*map(len, of_types)] == [1, 1]:
            plain.append((of_types[0][0], of_types[1][0]))
    if plain:
        return [*dict.fromkeys(plain)]
    worded = _pairs(words)
    alike = [(a, b) for a, b in worded if words[a] - _ENDS[0] == words[b] - _ENDS[1]]
    found = [
        (a, b)
        for a, b in dict.fromkeys([*(alike or worded), *numbered])
        if a != b and not (words[a] | words[b]) & _OF_VALUES
    ]
    of_ids = [(a, b) for a, b in found if (words[a] | words[b]) & (_OF_IDS - {'from', 'to'})]
    if of_ids or len(found) != 1:
        return of_ids or found
    return found if min(found[0]) < 2 else []  # columns in front of it may be the ends


def _pairs(words: list[set[str]]) -> list[tuple[int, int]]:
    """All pairs of a column with a word of sources and one with a word of destinations."""
    src, dst = ([at for at, has in enumerate(words) if has & of] for of in _ENDS)
    return [*product(src, dst)]


def ends_of(names: Sequence[str]) -> tuple[int, int] | None:
    """Which columns hold sources and destinations, by their names; None where that is not plain.

    They are called ``src`` and ``dst``, ``source`` and ``target``, ``from`` and ``to``; or such
    words are among others (``FromNodeId``); or the names differ by 1 and 2 (``node_1``).
    """
    found = _candidates(names, None)
    return found[0] if len(found) == 1 else None


def has_an_end(names: Sequence[str]) -> bool:
    """Whether a column is called as those of sources or of destinations mostly are."""
    return not {name.strip().lower() for name in names}.isdisjoint(_ENDS[0] | _ENDS[1])


def columns_of_ends(
    names: Sequence[str], where: str, types: tuple[str, str] | None = None
) -> tuple[int, int]:
    """The columns of sources and destinations.

    With `types` of nodes at both ends also by the names of these; of two columns that are called
    otherwise both, in the order of two types.
    """
    found = _candidates(names, types)
    is_of_two = types is not None and types[0] != types[1]
    if is_of_two and not found and len(names) == 2 and not has_an_end(names):
        found = [(0, 1)]
    if len(found) > 1:
        got = ', or '.join(f"'{names[a]}' and '{names[b]}'" for a, b in found)
        raise ValueError(
            f'expected one pair of columns that may be the ends of edges in {where} (got {got}): '
            'rename those that hold something else'
        )
    if not found:
        raise ValueError(
            f"expected columns 'src' and 'dst', 'source' and 'target', or 'from' and 'to', one of "
            f'each, in {where} (got {list(names)}): rename the columns of the ids; nodes of two '
            'kinds, as users and items, are a folder with nodes/TYPE and edges/SRC__REL__DST'
        )
    if types is not None and types[0] != types[1]:
        for at, other in zip(found[0], types[::-1], strict=True):
            if _is_of(names[at], other):
                raise ValueError(
                    f"expected ids of '{types[0]}' and of '{types[1]}', in this order, in {where} "
                    f'(got {[names[end] for end in found[0]]}): rename the columns src and dst'
                )
    return found[0]
