"""The counts of a chaos run, as text."""

from collections import Counter

__all__ = ['table']

_NONE_ALLOWED = {'dead survivors': 'dead survivor', 'hangs': 'hang', 'jobs that ended': 'job ended',
                 'tracebacks of workers': 'traceback', 'disagreements of workers': 'disagreement',
                 'updates with another lr than the policy\'s': 'lr', 'lost metrics or events': 'lost'}


def table(done, numbers, faults):
    """All counts.

    Parameters
    ----------
    done : list of Done
    numbers : dict of str to float
        From `verify`.
    faults : list of Fault

    Returns
    -------
    str
    """
    kinds = Counter(d.event.kind for d in done if d.event.kind not in ('start', 'end'))
    rows = [(f'  {kind}', count) for kind, count in sorted(kinds.items())]
    rows.insert(0, ('events', sum(kinds.values())))
    for name, value in numbers.items():
        if name == 'pauses':
            value = 'none' if value is None else ' / '.join(f'{seconds:.2f} s' for seconds in value)
            name = 'pauses: shortest / median / longest'
        rows.append((name, value))
    rows += [(name, sum(fault.kind.startswith(kind) for fault in faults)) for name, kind in _NONE_ALLOWED.items()]
    width = max(len(name) for name, _ in rows) + 2
    return '\n'.join(f'{name:{width}}{_text(value)}' for name, value in rows)


def _text(value):
    return f'{value:.3f}' if isinstance(value, float) else f'{value:,}' if isinstance(value, int) else value
