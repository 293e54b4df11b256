"""The pauses as tables, and whether the goals are reached."""

from statistics import median

from benchmarks.overhead_parts.cases import DISTURBED

__all__ = ['pause_table', 'size_table', 'pause_goals']

GROWTH, SHRINK, BEYOND_DETECTION = 0.6, 0.5, 2.0        # seconds at most
# How many times longer a restart, and a growth without warm-up, must take; by seconds of a newcomer's sleep.
TIMES_FASTER = {1: 5, 20: 20}
# Growths count as independent of the start-up if their medians differ by no more than this part of the shorter.
_ALIKE = 0.25
_PARTS = ('leave', 'meet', 'init', 'sync', 'commit')


def pause_table(rows):
    """All pauses of the small network as text; medians, and each of them.

    Parameters
    ----------
    rows : list of dict
        Of `measure_pauses`.
    """
    rows = [row for row in rows if not row['sizes']]
    if not rows:
        return ''
    lines = [f'the pause of a resize: {rows[0]["parameters"]:,} parameters; an update takes '
             f'{1000 * median(row["step_seconds"] for row in rows):.0f} ms; '
             f'other load on the machine: up to {100 * max(row["other_load"] for row in rows):.0f} %',
             f'  {"seconds, medians":19} {"start-up":>8} {"ready":>6} {"pause":>6} ' +
             ' '.join(f'{part:>6}' for part in _PARTS) + f' {"rest":>6}  each pause']
    for (what, startup, late), group in _groups(rows):
        text = f'+{startup}{"*" if late else ""}' if what in ('growth', 'growth, no warm-up', 'restart') else ''
        ready = f'{median(row["ready_seconds"] for row in group):6.1f}' if 'ready_seconds' in group[0] else 6 * ' '
        parts = 41 * ' ' if what == 'restart' else ' '.join(f'{value:6.3f}' for value in _parts(group))
        lines.append(f'  {what:19} {text:>8} {ready} {_middle(group, "pause"):6.2f} {parts}  '
                     + ' '.join(f'{row["pause_seconds"]:.2f}' for row in group))
    lines.append('  start-up: seconds that a newcomer slept before dynamic.init() (*: after it); ready: from its start '
                 'until it could train')
    crashes = _of(rows, 'crash')
    if crashes:
        lines.append('  crashes: ' + '; '.join(
            f'rank {row["victim_rank"]} of 3 killed, noticed after {row["noticed_seconds"]:.3f} s, '
            f'{row["beyond_seconds"]:.2f} s from there on' for row in crashes))
    growths = _of(rows, 'growth')
    if growths:
        lines.append(f'  while newcomers started, no update took longer than '
                     f'{max(row["longest_step_seconds"] for row in growths):.2f} s')
    return '\n'.join(lines)


def size_table(rows):
    """The pauses of networks of several sizes as text."""
    rows = [row for row in rows if row['sizes']]
    if not rows:
        return ''
    lines = [f'the pause by number of parameters; other load on the machine: up to '
             f'{100 * max(row["other_load"] for row in rows):.0f} %',
             f'  {"parameters":>11} {"what":8} {"update":>7} {"pause":>6} {"sync":>5} ' +
             ' '.join(f'{part:>6}' for part in _PARTS) + f' {"rest":>6}  each pause']
    for parameters in sorted({row['parameters'] for row in rows}):
        for what in ('growth', 'shrink', 'crash'):
            group = [row for row in _of(rows, what) if row['parameters'] == parameters]
            if not group:
                continue
            share = median(row['sync_seconds'] / row['pause_seconds'] for row in group)
            lines.append(f'  {parameters:11,d} {what:8} {_middle(group, "step"):7.3f} {_middle(group, "pause"):6.2f} '
                         f'{100 * share:3.0f} % ' + ' '.join(f'{value:6.3f}' for value in _parts(group)) + '  ' +
                         ' '.join(f'{row["pause_seconds"]:.2f}' for row in group))
    return '\n'.join(lines)


def pause_goals(rows):
    """A line for each goal.

    Parameters
    ----------
    rows : list of dict
        Of `measure_pauses`.

    Returns
    -------
    list of str
        With the median against the goal, and the worst of all.
    """
    rows = [row for row in rows if not row['sizes']]
    growths = {startup: _of(rows, 'growth', startup) for startup in TIMES_FASTER}
    lines = [_at_most(f'growth, start-up +{startup} s', growths[startup], 'pause_seconds', GROWTH)
             for startup in TIMES_FASTER]
    lines.append(_independent(growths))
    lines.append(_at_most('shrink', _of(rows, 'shrink'), 'pause_seconds', SHRINK))
    lines.append(_at_most('crash, from when it was noticed', _of(rows, 'crash'), 'beyond_seconds', BEYOND_DETECTION))
    for startup, times in TIMES_FASTER.items():
        for what in ('restart', 'growth, no warm-up'):
            lines.append(_faster(f'growth against {what}, start-up +{startup} s', growths[startup],
                                 _of(rows, what, startup), times))
    if max((row['other_load'] for row in rows), default=0.0) > DISTURBED:
        lines.append('other processes used the machine meanwhile: measure again')
    return lines


def _at_most(name, rows, quantity, goal):
    if not rows:
        return f'goal: {name}: at most {goal} s: not measured'
    found = [row[quantity] for row in rows]
    middle = median(found)
    verdict = f'reached, {goal - middle:.2f} s below' if middle <= goal else f'not reached, {middle - goal:.2f} s above'
    above = sum(value > goal for value in found)
    return (f'goal: {name}: at most {goal} s: {verdict} (median {middle:.2f} s; longest {max(found):.2f} s; '
            f'{above} of {len(found)} above)')


def _independent(growths):
    middles = [median(row['pause_seconds'] for row in rows) for rows in growths.values() if rows]
    if len(middles) < 2:
        return 'goal: growth does not depend on the start-up: not measured'
    verdict = 'reached' if max(middles) <= (1 + _ALIKE) * min(middles) else 'not reached'
    return (f'goal: growth does not depend on the start-up (medians within {100 * _ALIKE:.0f} %): {verdict} (' +
            ', '.join(f'+{startup} s {middle:.3f} s' for startup, middle in zip(growths, middles)) + ')')


def _faster(name, ours, theirs, times):
    if not ours or not theirs:
        return f'goal: {name}: at least {times} times faster: not measured'
    ratio = _middle(theirs, 'pause') / _middle(ours, 'pause')
    return (f'goal: {name}: at least {times} times faster: {"reached" if ratio >= times else "not reached"} '
            f'({ratio:.1f} times: {_middle(theirs, "pause"):.2f} s against {_middle(ours, "pause"):.2f} s)')


def _groups(rows):
    """Rows by what, start-up and lateness, in the order in which they were measured."""
    found = {}
    for row in rows:
        found.setdefault((row['what'], row['startup'], row['late']), []).append(row)
    return sorted(found.items(), key=lambda item: ('growth', 'shrink', 'crash', 'growth, no warm-up', 'restart').index(
        item[0][0]))


def _of(rows, what, startup=None):
    return [row for row in rows if row['what'] == what and startup in (None, row['startup']) and not row['late']]


def _middle(rows, quantity):
    return median(row[f'{quantity}_seconds'] for row in rows)


def _parts(rows):
    """Medians of the parts of pauses, and of what is left."""
    rests = [row['pause_seconds'] - sum(row[f'{part}_seconds'] for part in _PARTS) for row in rows]
    return [*(_middle(rows, part) for part in _PARTS), median(rests)]
