"""What the ranks compare before every operation when they debug: what it is, and what it moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor


class Step(NamedTuple):
    """An operation of one rank, in words and numbers that any encoding carries.

    Attributes:
        operation: What it is, in the words of all ranks.
        layer: Where.
        forms: Dtype and shape of what it moves, of a single row where numbers of rows differ.
        sends: How many rows go to each rank, where ranks know what they get.
        expects: How many rows come from each rank.
    """

    operation: str
    layer: str = ''
    forms: Sequence[str] = ()
    sends: Sequence[int] = ()
    expects: Sequence[int] = ()

    @staticmethod
    def of_rows(
        operation: str, rows: Iterable[Tensor], sends: Sequence[int], expects: Sequence[int]
    ) -> Step:
        """An exchange of rows of tensors."""
        forms = [f'rows of {t.dtype} of shape {tuple(t.shape[1:])}' for t in rows]
        return Step(operation, '', forms, sends, expects)

    @staticmethod
    def of_whole(operation: str, tensor: Tensor) -> Step:
        """A reduction of tensors of one shape."""
        return Step(operation, '', [f'{tensor.dtype} of shape {tuple(tensor.shape)}'])


def difference(steps: Sequence[Step]) -> str | None:
    """In what the steps of all ranks differ, told from what most of them do; None if in nothing."""
    for words in (_operation, _forms):
        said = [words(step) for step in steps]
        usual = Counter(said).most_common(1)[0][0]
        odd = next((rank for rank, each in enumerate(said) if each != usual), None)
        if odd is not None:
            return f'{usual} on rank {said.index(usual)} (got {said[odd]} on rank {odd})'
    for sender, a in enumerate(steps):
        for reader, b in enumerate(steps):
            if a.sends and b.expects and a.sends[reader] != b.expects[sender]:
                return (
                    f'{_operation(a)} with {b.expects[sender]} rows from rank {sender} on rank '
                    f'{reader} (got {a.sends[reader]} rows that rank {sender} sends)'
                )
    return None


def _operation(step: Step) -> str:
    return f'{step.operation} in {step.layer or "no layer"}'


def _forms(step: Step) -> str:
    return f'{_operation(step)} with {" and ".join(step.forms) or "no rows"}'
