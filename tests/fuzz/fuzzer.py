"""Loads damaged folders and files, thousands a minute: ``python tests/fuzz/fuzzer.py 100000``.

Every case must end in a ValueError or FileNotFoundError that names the folder, or in a result: the
right one, bit for bit, where checksums were not forged as well; else one that the kernels can work
with. It must not run code, take long, take much memory, or end the process.

A case is made of its seed and number alone, so ``--seed 7 --case 123`` repeats it. What was loaded
lies in the folder that is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import mutations as m  # noqa: E402 (as a program it has not pytest's paths)
from targets import TARGETS, Target  # noqa: E402

SECONDS = 20  # for one case, which takes milliseconds
MIB = 300  # by which all cases together may raise the peak of the process


class Defect(AssertionError):
    """A case that ended as none may."""


class Fuzzer:
    """All cases of a seed.

    Args:
        work: A folder for what is damaged.
        seed: Of the cases.
    """

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.seed = work, seed
        self.marker = work / 'run-by-a-file'
        self.outside = work / 'outside'
        self.outside.mkdir(parents=True)
        self.targets = {name: make(work / name) for name, (_, make) in TARGETS.items()}
        self.ends: Counter[str] = Counter()
        self.peak = _peak()

    def run(self, case: int) -> None:
        """One case.

        Raises:
            Defect: If it ended as none may; the damaged folder is left as it is.
        """
        rng = random.Random(f'{self.seed}/{case}')
        weights = [weight for weight, _ in TARGETS.values()]
        name = rng.choices([*self.targets], weights)[0]
        target = self.targets[name]
        is_forged = self._damage(rng, target)
        try:
            with _limited():
                found = target.load(rng)
                end = 'other' if is_forged or target.expected is None else 'right'
                if end == 'right' and not target.is_right(found):
                    raise Defect(f'{name}: loaded, but not what was written')
                target.use(found, rng)
        except (ValueError, FileNotFoundError) as error:
            end = 'error'
            if str(target.root) not in str(error):
                raise Defect(f'{name}: the error does not name it: {error!r}') from error
        except Defect:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Defect(f'{name}: {error!r}') from error
        if self.marker.exists():
            raise Defect(f'{name}: code of a file was run')
        if _peak() - self.peak > MIB:
            raise Defect(f'{name}: took more than {MIB} MiB')
        self.ends[f'{name} {end}'] += 1
        target.folder.restore()

    def reset(self) -> None:
        """After a defect."""
        for target in self.targets.values():
            target.folder.restore()
        if self.marker.exists():
            self.marker.rmdir()
        self.peak = _peak()

    def _damage(self, rng: random.Random, target: Target) -> bool:
        """Damages a folder; whether its checksums are right again."""
        folder = target.folder
        harmful: set[str] = set()
        for _ in range(rng.choice((1, 1, 1, 2))):
            name = rng.choice(target.names)
            content = folder.read(name)
            what = rng.random()
            if what < 0.08 and name in target.odd_names:
                m.odd_file(rng, folder, name, self.outside)
                continue
            if what < 0.3:
                content = rng.choice((m.flip, m.cut, m.insert, m.splice))(rng, content)
            elif what < 0.4:
                content = rng.choice((folder.other, folder.files))[rng.choice(target.names)]
            elif what < 0.5 and not name.endswith('.json'):
                content = m.hostile(rng, content, self.marker)
                harmful.add(name)
            elif name in harmful:  # which must not be read here
                continue
            else:
                content = _structure(rng, name, content)
            folder.write(name, content)
        is_forged = rng.random() < 0.5
        if is_forged:
            target.forge(folder)
        return is_forged


def _structure(rng: random.Random, name: str, content: bytes) -> bytes:
    change = m.change_json if name.endswith('.json') else m.change_tensors
    change = m.change_arrays if name.endswith('.npz') else change
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return change(rng, content)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, OverflowError, EOFError):
        return m.flip(rng, content)  # it was damaged before, or that cannot be written
    except Exception:
        return m.cut(rng, content)


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f'took more than {SECONDS} s')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument('cases', nargs='?', type=int, default=100_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--case', type=int, help='this one alone')
    parser.add_argument('--go-on', action='store_true', help='after a defect, too')
    parser.add_argument('--out', type=Path, help='where the damaged folder is left')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # if the worst happens
    work = Path(tempfile.mkdtemp(prefix='fuzz-')) if args.out is None else args.out / 'fuzz'
    fuzzer = Fuzzer(work, args.seed)
    started, num_defects = time.monotonic(), 0
    cases = range(args.cases) if args.case is None else [args.case]
    with (work / 'case').open('wb', buffering=0) as current:
        for case in cases:
            os.pwrite(current.fileno(), f'{case:<12}'.encode(), 0)  # for those that kill
            try:
                fuzzer.run(case)
            except Defect as defect:
                print(f'seed {args.seed}, case {case}: {defect}\nits files are in {work}')
                if args.case is not None:
                    raise
                if not args.go_on:
                    return 1
                num_defects += 1
                fuzzer.reset()
    seconds = time.monotonic() - started
    print(f'{len(cases)} cases of seed {args.seed} in {seconds:.0f} s, {num_defects} defects')
    print(', '.join(f'{name} {count}' for name, count in sorted(fuzzer.ends.items())))
    shutil.rmtree(work)
    return int(num_defects > 0)


if __name__ == '__main__':
    sys.exit(main())
