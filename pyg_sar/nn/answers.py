"""What all ranks answered in a forward, which holds in the next one like it.

Within a forward ranks ask each other what each of them has, such as a sum that was kept. An answer
holds again while all that it is about stays: edges, tensors and their content. So the vote that a
forward begins with has a bit for it: whether all answers of the last such forward hold on this
rank. Where all ranks set it, nobody asks.

That needs the same questions about the same tensors on all ranks. Forwards of PyG's own convs ask
about arguments, and about what was made of these and kept. A conv with a forward of a program's own
asks each time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdRef

from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import Rows, plainly, same_plain
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import checksum, version_of

Holds = Callable[['Forward', list[Any], list[Any], tuple[Any, ...]], bool]
"""Called with a forward, and what an answer is about, its value and its states."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What all ranks answered to a question.

    Attributes:
        question: What was asked, and of which kind.
        about: The edges and tensors; none where the answer is right for any.
        value: What ranks have for them, or nothing.
        holds: Whether it holds in another forward, as far as this rank knows, with all of these.
        states: What `holds` compares.
    """

    question: Hashable
    about: tuple[WeakIdRef, ...]
    value: tuple[WeakIdRef, ...]
    holds: Holds
    states: tuple[Any, ...]


class Forward:
    """A forward of a layer that runs, or the last one of a kind; then it keeps nothing alive.

    Attributes:
        answers: Those of all ranks so far, one for every question.
        recalls: Whether those of the last forward hold on all ranks.
    """

    def __init__(self, edges: EdgeIndex, values: Iterable[Any], last: Forward | None) -> None:
        self._edges, self._values, self._last = edges, values, last
        self._states: dict[int, tuple[Tensor, Any]] = {}
        # What holds stays alive: ranks forget plans by themselves.
        self._held: list[tuple[list[Any], list[Any]]] = []
        self.recalls = False
        self.answers: list[Answer] = []

    def all_hold(self) -> bool:
        """Whether all answers of the last such forward hold on this rank."""
        if self._last is None:
            return False
        if self._last.answers and self._inputs[1] != self._last._inputs[1]:
            return False
        for answer in self._last.answers:
            about, value = ([each() for each in refs] for refs in (answer.about, answer.value))
            is_there = all(each is not None for each in (*about, *value))
            if not is_there or not answer.holds(self, about, value, answer.states):
                return False
            self._held.append((about, value))
        return True

    def end(self) -> Forward:
        """This forward, for the next one like it."""
        if self.answers:
            self._inputs  # noqa: B018 (of which the next forward has to have the same)
        del self._edges, self._values, self._last, self._states, self._held
        return self

    @cached_property
    def _inputs(self) -> tuple[list[WeakIdRef], list[Any]]:
        """Own rows of nodes without gradients, and all other arguments."""
        ends, others = (self._edges.ends.src, self._edges.ends.dst), list[Any]()
        nodes, values = list[WeakIdRef](), [*self._values]
        with plainly():
            for value in values:  # grows
                if isinstance(value, EdgeIndex):
                    handle, sharding = value.handle, value._sharding
                    others += WeakIdRef(handle), version_of(handle.ids), WeakIdRef(sharding)
                elif isinstance(value, Rows) and value._sharding in ends:
                    if not value.requires_grad:
                        nodes.append(WeakIdRef(same_plain(value)))
                elif isinstance(value, Tensor):
                    others += WeakIdRef(value), version_of(value)
                elif isinstance(value, (tuple, list)):
                    others.append(len(value))
                    values += value
                else:
                    others.append(value if isinstance(value, PLAIN) else object())
        return nodes, others

    def has(self, rows: Tensor) -> bool:
        """Whether these are own rows of nodes that the forward got."""
        return any(node() is rows for node in self._inputs[0])

    def state(self, tensor: Tensor) -> tuple[Any, ...]:
        """Version and checksum, which the rest of the forward does not compute again."""
        if id(tensor) not in self._states:
            self._states[id(tensor)] = tensor, (version_of(tensor), checksum(tensor))
        return self._states[id(tensor)][1]


asking: Scoped[Forward | None] = Scoped(None)
"""The forward that runs in this thread, if ranks may recall answers in it."""


def never(*_: Any) -> bool:
    """Of an answer that does not hold again."""
    return False


def recalled(question: Hashable, *about: Any) -> list[Any] | None:
    """The value of the answer to the next question of a forward; None if ranks have to ask."""
    now = asking.value
    if now is None or not now.recalls or len(now.answers) >= len(now._held):
        return None
    assert now._last is not None
    number = len(now.answers)
    answer, (things, value) = now._last.answers[number], now._held[number]
    is_about = len(things) == len(about) and all(map(operator.is_, things, about))
    if answer.question != question or not (is_about or not things):
        return None
    now.answers.append(answer)
    return value


def note(
    question: Hashable,
    about: Iterable[Any],
    value: Iterable[Any],
    holds: Holds,
    *states: Any,
) -> None:
    """Takes note of what all ranks have answered; see :class:`Answer`."""
    if asking.value is not None:
        refs, kept = tuple(map(WeakIdRef, about)), tuple(map(WeakIdRef, value))
        asking.value.answers.append(Answer(question, refs, kept, holds, states))


def is_argument(rows: Tensor) -> bool:
    """Whether these are own rows of nodes that the forward got."""
    return asking.value is not None and asking.value.has(rows)


def state_of(tensor: Tensor) -> tuple[Any, ...]:
    """Version and checksum of a tensor."""
    known = None if asking.value is None else asking.value._states.get(id(tensor))
    version = version_of(tensor)
    return known[1] if known is not None and known[1][0] == version else (version, checksum(tensor))
