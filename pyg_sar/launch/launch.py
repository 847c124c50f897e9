"""``launch``: ranks as processes of this machine, from a notebook or a script.

A forked process has the functions of a notebook. A process that starts anew has to import its
function, and cannot import those of a notebook. CUDA does not work in a fork once the parent has
asked it for devices, and imported libraries ask. OpenMP waits forever in a fork of a parent with
OpenMP threads, but only in the thread that had started them.
"""

from __future__ import annotations

import gc
import operator
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from pyg_sar.comm.errors import ExchangeError
from pyg_sar.comm.ranks import current, is_distributed


def launch(function: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    """Calls ``function(*args)`` in processes of this machine, which :func:`pyg_sar.init` joins.

    The function is the program that torchrun would start: it calls :func:`pyg_sar.init` and
    :func:`pyg_sar.load_shard`. It runs in a thread, not in the main one. Not collective: one
    process calls it.

    Without a GPU processes are forked. So the function may be written in a notebook, and sees all
    present variables. With a GPU processes start anew, and import the function. Then it must be in
    a module (``%%writefile train.py`` makes one of a cell), or in a script that calls `launch`
    below ``if __name__ == '__main__':``.

    Args:
        function: What every rank runs.
        num_ranks: How many ranks.
        *args: Passed on, the same to every rank.

    Returns:
        The results of `function` on rank 0, 1, ...; they must be picklable.

    Raises:
        torch.multiprocessing.ProcessRaisedException: If a rank raises, with the traceback of the
            first one that fails by itself; `error_index` is its rank. The others are ended.
        torch.multiprocessing.ProcessExitedException: If a rank ends otherwise.
        RuntimeError: If a rank ends without an error before the function returns.
        ValueError: If `num_ranks` is no whole number of at least 1, this process is a rank itself,
            or the function cannot be had by processes that start anew.

    Example::

        def train():
            process = pyg_sar.init()
            data = pyg_sar.load_shard('parts/').to(process.device)
            ...
            return loss.item()

        losses = pyg_sar.launch(train, 4)
    """
    if isinstance(num_ranks, bool) or not hasattr(num_ranks, '__index__'):
        raise ValueError(f"'num_ranks' must be a whole number (got {num_ranks!r})")
    num_ranks = operator.index(num_ranks)
    if num_ranks < 1:
        raise ValueError(f"'num_ranks' must be at least 1 (got {num_ranks})")
    if is_distributed():
        raise ValueError(
            'expected a process that is no rank (got rank '
            f'{current().rank} of {current().size}; launch starts all ranks by itself)'
        )
    method = _start_method(function)
    with (
        tempfile.TemporaryDirectory(prefix='pyg_sar-') as folder,
        # For the store, which torch would let listen on all interfaces.
        socket.create_server(('127.0.0.1', 0)) as listener,
        warnings.catch_warnings(),
    ):
        # Python 3.12: other threads may hold locks. Those of notebooks and of torch do not.
        warnings.filterwarnings('ignore', '.*multi-threaded, use of fork', DeprecationWarning)
        port = listener.getsockname()[1]
        gc.collect()  # garbage may wait for threads, which a fork does not have
        arguments = (function, args, num_ranks, port, folder)
        context = start_processes(  # type: ignore[no-untyped-call]
            _run, arguments, num_ranks, join=False, start_method=method
        )
        try:
            store = dist.TCPStore(
                '127.0.0.1',
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            while not context.join():
                pass
            del store
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        paths = [Path(folder) / str(rank) for rank in range(num_ranks)]
        for rank, path in enumerate(paths):
            if not path.exists():
                raise RuntimeError(
                    f'expected a result of rank {rank} (it ended by an exit or interrupt)'
                )
        return [torch.load(path, weights_only=False) for path in paths]  # of this user's ranks


def _start_method(function: Callable[..., Any]) -> str:
    if not torch.cuda.is_available():
        return 'fork'
    module = getattr(function, '__module__', '__main__')
    if module == '__main__' and not hasattr(sys.modules['__main__'], '__file__'):
        raise ValueError(
            'expected a function of a module, as on a machine with a GPU processes start anew '
            f'and import it (got {function!r} of a notebook; %%writefile train.py makes a module '
            'of its cell)'
        )
    return 'spawn'


def _run(
    rank: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    num_ranks: int,
    port: int,
    folder: str,
) -> None:
    """A rank, with the variables that torchrun would give it; the store is the caller's."""
    gc.freeze()  # the caller's stores and groups would wait for threads that a fork does not have
    os.environ |= {
        'RANK': str(rank),
        'LOCAL_RANK': str(rank),
        'WORLD_SIZE': str(num_ranks),
        'LOCAL_WORLD_SIZE': str(num_ranks),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(port),
        'TORCHELASTIC_USE_AGENT_STORE': 'True',
    }
    try:
        result = in_new_thread(function, *args)
    except ExchangeError:
        time.sleep(1)  # the rank that failed by itself is to end first, as it has more to say
        raise
    torch.save(result, Path(folder) / str(rank))
    if dist.is_initialized():
        dist.destroy_process_group()


def in_new_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function in a daemon thread: an interrupted process does not wait for such a one."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future.result()
