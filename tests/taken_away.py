"""What pyg_sar says and does where torch, PyG or pymetis lack one private name.

``python tests/taken_away.py FOLDER NAME ...`` with a partition folder prints JSON: what came of
each name. It is taken away in a process of its own, a fork of one that has imported torch and PyG
and not pyg_sar.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import types
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def take_away(name: str) -> None:
    """Removes what `name` stands for, as a version without it would lack it."""
    *path, last = name.split('.')
    owner: Any = importlib.import_module(path[0])
    for word in path[1:]:
        bare = word.removesuffix('()')
        if not hasattr(owner, bare):
            importlib.import_module(f'{owner.__name__}.{bare}')
        owner = getattr(owner, bare)
        if word.endswith('()'):
            cls, owner = owner, owner()
            if word == path[-1] and last in vars(owner):
                _made_without(cls, last)
                return
    assert hasattr(owner, last), name
    if last in getattr(owner, '__dict__', {}):
        delattr(owner, last)
    for cls in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if last in vars(cls):
            _delete(cls, last)
    if hasattr(owner, last):  # operations are made when they are asked for
        kind, make = type(owner), type(owner).__getattr__
        kind.__getattr__ = lambda me, word: _asked(me, word, owner, last, make)
        delattr(owner, last)
    assert not hasattr(owner, last), name


def _asked(me: Any, word: str, owner: Any, last: str, make: Callable[..., Any]) -> Any:
    if me is owner and word == last:
        raise AttributeError(word)
    return make(me, word)


def _delete(cls: Any, name: str) -> None:
    try:
        delattr(cls, name)
    except TypeError:  # a class written in C
        (own,) = (each for each in gc.get_referents(vars(cls)) if isinstance(each, dict))
        del own[name]
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _made_without(cls: Any, name: str) -> None:
    """Objects of a class lack an attribute from the time when they are made on."""
    make = cls.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        del vars(self)[name]

    cls.__init__ = made


def outcome(name: str, folder: str) -> str:
    """What importing pyg_sar, or else what needs the name, ends with."""
    try:
        if name and name not in TAKEN_LATER:
            take_away(name)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter('always')
            import pyg_sar  # noqa: F401
            from pyg_sar.utils import private_names

            if name in TAKEN_LATER:
                find = private_names.find

                def found(other: str) -> Any:
                    if other == name:
                        raise private_names.missing(other)
                    return find(other)

                _replace(find, found)
            if not name:
                return train(folder)
            (row,) = (each for each in private_names.NAMES if name in each.names.split())
            assert row.without, 'it was imported'
            result = CORNERS[row.names.split()[0]](folder)
        return ' | '.join([result, *(str(each.message) for each in told)])
    except ImportError as error:
        return f'ImportError: {error}'
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def _replace(function: Any, other: Any) -> None:
    for module in [*sys.modules.values()]:
        for word, value in [*getattr(module, '__dict__', {}).items()]:
            if value is function and module.__name__.startswith('pyg_sar'):
                setattr(module, word, other)


TAKEN_LATER = {
    'torch._guards.TracingContext.try_get',
    'torch._dynamo.exc.SkipFrame',
    'torch.nn.RNNBase._flat_weights',
    'torch.utils.hooks.BackwardHook._apply_on_tensors',
    'torch_geometric.data.Data._cached_attr',
}
"""What torch and PyG do not run without, or what their objects get later: only we miss it."""


def train(folder: str) -> str:
    """A step of a model that takes every fast way, told by its loss and gradients."""
    import torch
    from torch_geometric.nn import GATConv, GPSConv, SAGEConv

    import pyg_sar

    torch.manual_seed(0)
    data = pyg_sar.load_shard(folder)
    data.x = data.x.float()
    convs = SAGEConv(6, 8), GATConv(8, 4, heads=2), GPSConv(8, SAGEConv(8, 8), heads=2)
    model = pyg_sar.DistributedDataParallel(torch.nn.ModuleList([*convs, SAGEConv(8, 2)]))
    x = data.x
    for conv in model.module:
        x = conv(x, edge_index=data.edge_index).relu()
    x.mean().backward()
    grads = [p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None]
    return f'{x.mean().item():.5f} {sum(grads):.4f}'


def _in_turns(folder: str) -> str:
    import tempfile

    import pyg_sar

    with tempfile.TemporaryDirectory() as spill:
        return pyg_sar.run_in_turns(train, folder, folder, memory='1GB', spill=spill).results[0]


def _compile(folder: str) -> str:
    import torch

    import pyg_sar

    def program() -> str:
        x = pyg_sar.load_shard(folder).x
        return str(torch.compile(lambda x: x + 1, backend='eager')(x).shape)

    return pyg_sar.comm.threads.run_threads(program, 2)[0]


def _module_hooks(folder: str) -> str:
    import torch

    import pyg_sar

    def program() -> str:
        data = pyg_sar.load_shard(folder)
        layer = torch.nn.Linear(6, 2).double()
        layer.register_full_backward_hook(lambda *_: None)
        layer(torch.ones(2, 6).double()).sum().backward()  # plain tensors go through
        return str(layer(data.x).shape)

    return pyg_sar.comm.threads.run_threads(program, 2)[0]


def _embedding(folder: str) -> str:
    import pyg_sar

    return str(pyg_sar.NodeEmbedding(pyg_sar.load_shard(folder), 2)().shape)


def _optimizer(folder: str) -> str:
    from pyg_sar.rows.rows import Rows

    renamed = types.FunctionType((lambda rows: rows).__code__, {}, '_many_add_')
    return str(Rows.__torch_function__(renamed, ()))


def _recurrent(folder: str) -> str:
    import torch
    from torch_geometric.nn import MessagePassing

    from pyg_sar.nn.forward_state import state_of

    class Conv(MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.GRU(2, 2)

    conv = Conv()
    del vars(conv.inner)['_flat_weights']
    return str(state_of(conv))


def _timeout(folder: str) -> str:
    import torch.distributed as dist

    from pyg_sar.comm.groups import timeout_of

    dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())
    return str(timeout_of(dist.group.WORLD))


def _attributes(folder: str) -> str:
    from torch_geometric.data import Data

    import pyg_sar

    Data.is_edge_attr = lambda data, name: False  # type: ignore[method-assign]
    return str(pyg_sar.load_shard(folder))


CORNERS: dict[str, Callable[[str], str]] = {
    'torch._C._is_torch_function_all_disabled': _in_turns,
    'torch.ops.aten._scaled_dot_product_flash_attention_for_cpu': train,
    'torch.ops.mkldnn._linear_pointwise.default': train,
    'torch.ops.aten._to_copy.default': train,
    'torch._guards.TracingContext.try_get': _compile,
    'torch._jit_internal._qualified_name': train,
    'torch.nn.parallel.DistributedDataParallel._get_active_ddp_module': _embedding,
    'torch.utils.hooks.BackwardHook._apply_on_tensors': _module_hooks,
    'torch._amp_foreach_non_finite_check_and_unscale_': _optimizer,
    'torch.nn.RNNBase._flat_weights': _recurrent,
    'torch._C._distributed_c10d.Backend.Options._timeout': _timeout,
    'torch_geometric.data.Data._cached_attr': _attributes,
}
"""By the first name of its row, a program of the corner that needs it."""


def _answer(to: Connection, name: str, folder: str) -> None:
    os.dup2(2, 1)  # what is printed is no answer
    to.send(outcome(name, folder))
    to.close()


def main() -> None:
    import pymetis  # noqa: F401
    import torch._dynamo
    import torch_geometric.nn
    import torch_geometric.transforms  # noqa: F401

    torch.set_num_threads(1)
    found = {}
    context = multiprocessing.get_context('fork')
    for name in sys.argv[2:]:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_answer, args=(there, name, sys.argv[1]))
        child.start()
        there.close()
        try:
            found[name] = here.recv()
        except EOFError:
            found[name] = 'it ended without an answer'
        child.join()
    print(json.dumps(found))


if __name__ == '__main__':
    main()
