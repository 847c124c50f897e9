"""A CUDA device that is simulated, and NCCL: import it before torch. See README.md.

A plugin of pytest as well: ``python -m pytest -p simulated_cuda``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from compiled import CannotCompileError, libraries, torch_folder

assert 'torch' not in sys.modules, 'expected to be imported before torch'

why_not = ''
"""Why there is no simulation; empty if there is."""

try:
    _folder = libraries()
except CannotCompileError as error:
    why_not = str(error)
else:
    ctypes.CDLL(str(torch_folder() / 'lib' / 'libtorch_cpu.so'), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(_folder / 'libsimulated_cuda.so'), ctypes.RTLD_GLOBAL).start_simulated_cuda()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

SYNC_DEBUG_MODES = {'default': 0, 'warn': 1, 'error': 2}


class _Device(contextlib.nullcontext[None]):
    """The only one is always the current one."""

    def __init__(self, device: Any) -> None:
        super().__init__()


class _Stream:
    """The only one; what is put on it is done at once."""

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: _Stream) -> None:
        pass


def _simulate_device() -> None:
    """What asks torch for its devices finds one."""
    ops, stream = torch.ops.simulated_cuda, _Stream()
    found: dict[str, Any] = {
        '_lazy_init': lambda: None,
        'init': lambda: None,
        'is_initialized': lambda: True,
        'is_available': lambda: True,
        'is_bf16_supported': lambda *args, **kwargs: True,
        'device_count': lambda: 1,
        'current_device': lambda: 0,
        'set_device': lambda device: None,
        'device': _Device,
        'get_device_capability': lambda device=None: (9, 0),
        'get_device_name': lambda device=None: 'simulated',
        'synchronize': lambda device=None: None,
        'current_stream': lambda device=None: stream,
        'default_stream': lambda device=None: stream,
        'stream': lambda chosen: contextlib.nullcontext(),
        'empty_cache': lambda: None,
        'memory_allocated': lambda device=None: ops.allocated(),
        'max_memory_allocated': lambda device=None: ops.peak(),
        'reset_peak_memory_stats': lambda device=None: ops.reset_peak(),
        'set_sync_debug_mode': lambda mode: ops.set_sync_debug_mode(SYNC_DEBUG_MODES[mode]),
        'default_generators': (ops.generator(),),
    }
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    _simulate_storages()
    for module in (torch.cuda, torch.cuda.random):
        for name, value in found.items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)


def _simulate_storages() -> None:
    """What a build without CUDA refuses to do with memory of a device."""
    storage_class = torch.UntypedStorage
    new, resize = storage_class.__new__, storage_class.resize_

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # when one is cloned or loaded
        device = kwargs.get('device')
        if device is None or torch.device(device).type != 'cuda':
            return new(cls, *args, **kwargs)
        return torch.empty(*args, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        if storage.device.type != 'cuda':
            return resize(storage, size)
        torch.ops.simulated_cuda.resize_storage(storage, size)
        return storage

    storage_class.__new__, storage_class.resize_ = __new__, resize_


def _simulate_nccl(path: Path) -> None:
    """torch makes the simulated group where NCCL is asked for."""
    spec = importlib.util.spec_from_file_location('_simulated_nccl', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ProcessGroupNCCL.Options = SimpleNamespace
    torch.cuda.nccl.version = lambda: (2, 28, 9)
    c10d = dist.distributed_c10d
    c10d._NCCL_AVAILABLE = True
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = module.ProcessGroupNCCL
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)


def _simulate_gloo() -> None:
    """gloo's collectives copy what is on a device to the host; what it sends must be there."""

    def staged(name: str) -> Any:
        plain = getattr(dist.ProcessGroup, name)

        @functools.wraps(plain)
        def call(group: Any, *args: Any) -> Any:
            return plain(
                group, *torch.utils._pytree.tree_map(lambda t: _by_gloo(group, name, t), args)
            )

        return call

    for name in ('allreduce', 'broadcast', 'allgather', 'alltoall_base', 'send', 'recv'):
        setattr(dist.ProcessGroup, name, staged(name))


def _by_gloo(group: dist.ProcessGroup, name: str, value: Any) -> Any:
    is_there = isinstance(value, torch.Tensor) and value.is_cuda
    if not is_there or group._get_backend(value.device).name() != 'gloo':
        return value
    # ProcessGroupGloo.cpp, send and recv: no check, the address is taken for one of the host.
    assert name not in ('send', 'recv'), 'Segmentation fault: gloo reads memory of a device'
    return torch.ops.simulated_cuda.on_cpu(value)


if not why_not:
    _simulate_device()
    _simulate_gloo()
    _simulate_nccl(_folder / '_simulated_nccl.so')


def pytest_configure() -> None:
    """Ranks that tests start have the simulation, too."""
    sys.path.append(str(Path(__file__).parents[1]))
    import ranks

    if not why_not:
        ranks.context.set_forkserver_preload(['simulated_cuda', *ranks._PRELOADED])
