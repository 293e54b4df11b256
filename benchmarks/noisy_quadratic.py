"""The noisy quadratic model: policies compared exactly, without sampling, and how far each is from the best possible.

``python -m benchmarks.noisy_quadratic`` prints the tables and draws the figures; ``--quick`` takes a few transitions only.
docs/results.md says what came out.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.quadratic_parts.best import best
from benchmarks.quadratic_parts.curvature import curvature_rows, draw_curvature
from benchmarks.quadratic_parts.figure import draw_bound
from benchmarks.quadratic_parts.model import outcome
from hvd_dynamic import policies

RATIOS = (2, 4, 8, 16)
TRANSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Learning rate at the larger batch.
RATES = (0.05, 0.1, 0.2)
AT_ONCE = {'Linear': policies.Linear(), 'LinearUncorrected': policies.LinearUncorrected(),
           'Compensated': policies.Compensated(), 'Smooth, default T': policies.Smooth(),
           'SmoothCompensated, default T': policies.SmoothCompensated()}


def main(argv=None):
    """Run it.

    Returns
    -------
    int
        The exit status, 0.
    """
    parser = argparse.ArgumentParser(prog='python -m benchmarks.noisy_quadratic', description=__doc__.partition('\n\n')[2])
    parser.add_argument('--quick', action='store_true', help='two ratios and one learning rate only')
    parser.add_argument('--out', type=Path, default=Path(tempfile.gettempdir()) / 'noisy-quadratic', metavar='DIR',
                        help='for tables.md and figures (default: %(default)s)')
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    ratios, rates = ((4, 16), (0.1,)) if args.quick else (RATIOS, RATES)
    cases = [(ratio, way, rate) for rate in rates for ratio in ratios for way in ('grows', 'shrinks')]
    parts, bounds = [], {}
    with tqdm(total=len(cases), unit='case', disable=None) as bar:
        for case in cases:
            bounds[case] = best(*case)
            bar.update()
    for rate in rates:
        parts += [f'### Learning rate {rate} at the larger batch\n', table(rate, ratios, bounds), '']
    parts += ['### A curvature that follows the learning rate\n', curvature_rows(), '']
    text = '\n'.join(parts)
    (args.out / 'tables.md').write_text(text)
    print(text)
    for name, figure in (('bound.png', draw_bound(bounds, rates[len(rates) // 2], max(ratios), AT_ONCE)),
                         ('curvature.png', draw_curvature())):
        figure.savefig(args.out / name, dpi=110)
        print(args.out / name)
    return 0


def candidates():
    """All policies by name."""
    ramps = {f'Smooth, T = {t}': policies.Smooth(updates=t) for t in TRANSITIONS}
    return {**AT_ONCE, **ramps}


def table(rate, ratios, bounds):
    """Peak and area of each policy for all resizes at a learning rate, and the best possible area."""
    columns = [(ratio, way) for way in ('grows', 'shrinks') for ratio in ratios]
    lines = ['Without drift: peak of the expected loss over the steady one before. With drift, in brackets: excess of the '
             'loss over the new steady one, summed, in thousands of samples; less is better:\n',
             '| policy | ' + ' | '.join(f'{way} {ratio}-fold' for ratio, way in columns) + ' |',
             '| ' + ' | '.join(['---'] * (len(columns) + 1)) + ' |']
    for name, policy in candidates().items():
        cells = []
        for ratio, way in columns:
            peak, area = outcome(policy, ratio, way, rate)[0], outcome(policy, ratio, way, rate, drift=True)[1]
            cells.append(f'{_number(peak)} ({_number(area / 1000, 1)})')
        lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    cells = [f'({bounds[ratio, way, rate].area / 1000:.1f})' for ratio, way in columns]
    lines.append('| best possible | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def _number(value, digits=2):
    return f'{value:.{digits}f}' if abs(value) < 1e5 else f'{value:.0e}'


if __name__ == '__main__':
    sys.exit(main())
