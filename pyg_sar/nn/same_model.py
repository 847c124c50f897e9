"""Compares the ranks' models before they train together."""

from __future__ import annotations

import hashlib
import sys
from itertools import zip_longest

import torch
from torch import Tensor

from pyg_sar.comm.ranks import is_distributed
from pyg_sar.comm.vote import agree, are_alike, differ, odd_and_usual
from pyg_sar.nn.buckets import common
from pyg_sar.nn.sar_conv import SARConv
from pyg_sar.utils.class_swap import plain_class
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.tensor_state import checksum, digest

_PLAIN = (*PLAIN, torch.dtype)


def check_same_model(model: torch.nn.Module, options: dict[str, object]) -> None:
    """Compares the ranks' models: classes, settings, parameters, options (collective).

    One small all-gather of a checksum; if the checksums differ another one of descriptions. Then
    all ranks raise a ValueError with the first line that differs.
    """
    own = _describe(model, options)
    digest = hashlib.sha256('\n'.join(own).encode()).hexdigest()
    if len(set(agree(digest))) == 1:
        return
    of_ranks = agree(own)
    odd, usual = odd_and_usual(of_ranks)
    for a, b in zip_longest(of_ranks[odd], of_ranks[usual], fillvalue='nothing more'):
        if a != b:
            raise differ(
                f'expected the same model on all ranks: {a} on rank {odd} (got {b} on rank '
                f'{usual}): make it by the same lines on every rank',
                odd,
            )


def check_same_values(model: torch.nn.Module, when: str, advice: str) -> None:
    """Compares the ranks' parameters and buffers (collective: one small all-gather).

    `when` and `advice` are for the message.

    Raises:
        ValueError: On all ranks, with the name of the first that differs.
    """
    values = {**common(model.named_parameters()), **common(model.named_buffers())}
    sums = digest(values.values()) if is_distributed() else 0
    if not are_alike(f'parameters and buffers: {sums}', True)[0]:
        check_values(agree(sums_of(values)), when, advice)


def sums_of(values: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The checksum of every tensor, by name."""
    return {name: checksum(tensor) for name, tensor in values.items()}


def check_values(of_ranks: list[dict[str, tuple[int, ...]]], when: str, advice: str) -> None:
    """Raises what :func:`check_same_values` does, by the ranks' checksums."""
    for name in of_ranks[0]:
        sums = [of_rank.get(name) for of_rank in of_ranks]
        if len(set(sums)) > 1:
            odd, usual = odd_and_usual(sums)
            raise differ(
                f"'{name}' must be equal on all ranks (rank {odd} has other numbers than rank "
                f'{usual} {when}): {advice}',
                odd,
            )


def _describe(model: torch.nn.Module, options: dict[str, object]) -> list[str]:
    """One line for every setting and tensor that must be alike on all ranks."""
    lines = [f'option {name}={value!r}' for name, value in options.items()]
    for path, module in model.named_modules():
        kind = _class_of(module)
        names = []
        if kind.startswith('torch'):  # a class of the user's may well hold its rank
            names = [n for n in vars(module) if not n.startswith('_') and n != 'training']
        settings = {n: vars(module)[n] for n in names if isinstance(vars(module)[n], _PLAIN)}
        if isinstance(module, SARConv):
            settings |= vars(module.sar_options)
        name = f"'{path}'" if path else 'the model'
        lines.append(f'{name}: {kind}')
        lines += [f'{name}: {option}={value}' for option, value in sorted(settings.items())]
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_set = not torch.nn.parameter.is_lazy(tensor)
        shape: object = tuple(tensor.shape) if is_set else 'not known yet'
        needs = ', with gradient' if tensor.requires_grad else ''
        where = '' if tensor.device.type == 'cpu' else f', on {tensor.device.type}'
        lines.append(f"'{path}': {tensor.dtype} of shape {shape}{needs}{where}")
    return lines


def _class_of(module: torch.nn.Module) -> str:
    """The first of its classes with a lasting name: PyG generates some with random names."""
    for cls in plain_class(module).__mro__:
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
            return f'{cls.__module__}.{cls.__qualname__}'
    return type(module).__qualname__
