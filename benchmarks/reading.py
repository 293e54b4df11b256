"""How fast the text format of the Extreme Classification Repository is read: ``python -m benchmarks.reading``.

Makes a file of 100 MB in a temporary folder (lines with 5 labels and 20 to 100 features each; 2000 of them, repeated), reads
it three times on one thread, and prints megabytes by second of CPU time and of the clock.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from gluon_examples.extreme_classification import xmlformat

_FEATURES, _LABELS, _MEGABYTES = 135909, 670091, 100


def main():
    """Make the file, read it, print."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(2000):
        indices = np.sort(rng.integers(_FEATURES, size=rng.integers(20, 100)))
        lines.append(','.join(map(str, rng.integers(_LABELS, size=5)))
                     + ''.join(f' {i}:{v:.6f}' for i, v in zip(indices, rng.random(len(indices)))) + '\n')
    block = ''.join(lines)
    times = -(-_MEGABYTES * 10**6 // len(block))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'data.txt'
        with open(path, 'w') as file:
            file.write(f'{2000 * times} {_FEATURES} {_LABELS}\n')
            for _ in range(times):
                file.write(block)
        size = path.stat().st_size / 1e6
        for _ in range(3):
            cpu, clock = time.process_time(), time.perf_counter()
            samples = xmlformat.read(path)
            cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
            print(f'{size:.0f} MB, {samples.features.nnz} values: {size / cpu:.1f} MB by second of CPU, {size / clock:.1f} '
                  f'MB/s by the clock', flush=True)


if __name__ == '__main__':
    main()
