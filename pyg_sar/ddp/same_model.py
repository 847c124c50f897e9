"""What the ranks compare of their models before they train together."""

from __future__ import annotations

import hashlib
import sys
from itertools import zip_longest

import torch

from pyg_sar.comm import agree
from pyg_sar.conv.names import PLAIN, plain_class
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.own_rows import OwnRows

_PLAIN = (*PLAIN, torch.dtype)


def check_same_model(model: torch.nn.Module, options: dict[str, object]) -> None:
    """Compares the ranks' models: classes, settings, parameters, options (collective).

    One small all-gather of a checksum; if they differ another one of what they are made of. Then
    all ranks raise a ValueError with the first thing that differs from rank 0's.
    """
    own = _describe(model, options)
    digest = hashlib.sha256('\n'.join(own).encode()).hexdigest()
    if len(set(agree(digest))) == 1:
        return
    first, *others = agree(own)
    for rank, lines in enumerate(others, 1):
        for a, b in zip_longest(first, lines, fillvalue='nothing more'):
            if a != b:
                raise ValueError(
                    f'expected the same model on all ranks: {a} on rank 0 (got {b} on rank {rank})'
                )


def _describe(model: torch.nn.Module, options: dict[str, object]) -> list[str]:
    """One line for everything that the ranks must have alike."""
    lines = [f'option {name}={value!r}' for name, value in options.items()]
    for path, module in model.named_modules():
        kind = _class_of(module)
        names = []
        if kind.startswith('torch'):  # a class of the user's may well hold its rank
            names = [n for n in vars(module) if not n.startswith('_') and n != 'training']
        found = {n: vars(module)[n] for n in names if isinstance(vars(module)[n], _PLAIN)}
        if isinstance(module, SARConv):
            found |= vars(module.sar_options)
        name = f"'{path}'" if path else 'the model'
        lines.append(f'{name}: {kind}')
        lines += [f'{name}: {option}={value}' for option, value in sorted(found.items())]
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_set = not torch.nn.parameter.is_lazy(tensor)
        shape: object = tuple(tensor.shape) if is_set else 'not known yet'
        if isinstance(tensor, OwnRows):
            shape = ('own nodes', *tensor.shape[1:])
        needs = ', with gradient' if tensor.requires_grad else ''
        where = '' if tensor.device.type == 'cpu' else f', on {tensor.device.type}'
        lines.append(f"'{path}': {tensor.dtype} of shape {shape}{needs}{where}")
    return lines


def _class_of(module: torch.nn.Module) -> str:
    """The first of its classes that has its name for good: PyG generates some with random names."""
    for cls in plain_class(module).__mro__:
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
            return f'{cls.__module__}.{cls.__qualname__}'
    return type(module).__qualname__
