"""A worker that times commits and weighs them: ``python -m benchmarks.overhead_parts.commits``.

Alone (a `VirtualWorld` of one) or in a horovodrun job; `benchmarks.overhead` starts it.
"""

import argparse
import ctypes
import json
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import psutil
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from benchmarks.overhead_parts.cases import ARRAYS

_LARGEST_BUFFER = 1 << 28       # bytes; a plain copy of more goes over the same memory again


class Parameters(gluon.Block):
    """So many parameters, in arrays of equal size, and a loss that gives each a gradient.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count):
        super().__init__()
        sizes = [count // ARRAYS + (i < count % ARRAYS) for i in range(ARRAYS)]
        with self.name_scope():
            self._weights = [self.params.get(f'weight{i}', shape=(size,)) for i, size in enumerate(sizes)]

    def forward(self):
        """The sum of all parameters."""
        return mx.nd.add_n(*(weight.data().sum() for weight in self._weights))


class WeighedState(dynamic.GluonState):
    """Notes what each storing of a commit costs: time on the host, time of the copies, and memory."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        # Past GluonState's own __setattr__: this is no attribute that is to be carried to other workers.
        object.__setattr__(self, '_notes', [])

    @property
    def notes(self):
        """One dict for each storing: host_seconds, copy_seconds, grown_bytes, peak_bytes, resident_bytes."""
        return self._notes

    def _store(self, commit):
        mx.nd.waitall()
        if len(self._notes) < 2:
            # Only where memory is weighed: pages that were given back must be fetched again, which takes time.
            _give_back_free_memory()
        before = psutil.Process().memory_info().rss
        _forget_peak()
        start = time.perf_counter()
        super()._store(commit)
        returned = time.perf_counter()
        mx.nd.waitall()
        copied = time.perf_counter()
        peak, after = _peak(), psutil.Process().memory_info().rss
        self._notes.append({'host_seconds': returned - start, 'copy_seconds': copied - returned,
                            'grown_bytes': after - before, 'peak_bytes': max(peak - before, after - before),
                            'resident_bytes': after})


def _give_back_free_memory():
    """Have the C library return what it keeps for later, which would otherwise hide or feign growth."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass        # not glibc


def _forget_peak():
    try:
        Path('/proc/self/clear_refs').write_text('5')
    except OSError:
        pass        # the peak is then that of the whole process


def _peak():
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmHWM:'):
            return 1024 * int(line.split()[1])
    return 0


class PlainCopy:
    """A NumPy copy of so many bytes."""

    def __init__(self, nbytes):
        size = min(nbytes, _LARGEST_BUFFER)
        self._source, self._target = np.ones(size, 'uint8'), np.ones(size, 'uint8')
        self._whole, self._rest = divmod(nbytes, size)

    def seconds(self):
        """Do it, and say how long it took."""
        start = time.perf_counter()
        for _ in range(self._whole):
            np.copyto(self._target, self._source)
        np.copyto(self._target[:self._rest], self._source[:self._rest])
        return time.perf_counter() - start


def measure(count, commits):
    """Do updates of `count` parameters, each with a commit.

    Returns
    -------
    dict
        ``state_bytes`` (parameters and optimizer state), ``begin`` and ``first`` (the storing when a round begins, when
        there is no optimizer state yet, and the first with it), ``commits`` (the others, each with commit_seconds and
        plain_copy_seconds), ``rank``.
    """
    dynamic.init()
    net = Parameters(count)
    net.initialize(mx.init.Constant(1e-3))
    sampler = dynamic.ElasticSampler(10 ** 9, batch_size=1)
    schedule = dynamic.DynamicSchedule(1e-6, reference_batch=dynamic.size())
    trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', {'momentum': 0.9}, schedule=schedule)
    state = WeighedState(net=net, trainer=trainer, sampler=sampler, epoch=0)
    timed = []

    @dynamic.run
    def train(state):
        plain_copy = None
        for _ in range(commits + 1):
            with autograd.record():
                loss = net()
            loss.backward()
            trainer.step(1)
            trainer.confirm()
            mx.nd.waitall()
            start = time.perf_counter()
            state.commit()
            committed = time.perf_counter()
            state.world.barrier()           # all workers copy at the same time, as they do in training
            trainer.before_update()         # what the next update begins with: stores the commit
            if plain_copy is None:          # made only now, so that it is not mistaken for a part of the first commit
                plain_copy = PlainCopy(2 * 4 * count)
                plain_copy.seconds()
                continue
            state.world.barrier()
            timed.append({'commit_seconds': committed - start, 'plain_copy_seconds': plain_copy.seconds(),
                          **state.notes[-1]})

    train(state)
    begin, first = state.notes[:2]
    return {'rank': dynamic.rank(), 'parameters': count, 'state_bytes': 2 * 4 * count, 'begin': begin, 'first': first,
            'commits': timed}


def main():
    """Measure, and write what came out to a file of this worker's own."""
    parser = argparse.ArgumentParser()
    parser.add_argument('parameters', type=int)
    parser.add_argument('commits', type=int)
    parser.add_argument('folder', type=Path)
    args = parser.parse_args()
    result = measure(args.parameters, args.commits)
    (args.folder / f"result-{result['rank']}.json").write_text(json.dumps(result))


if __name__ == '__main__':
    main()
