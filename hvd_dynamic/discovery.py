"""A host discovery script for horovodrun that follows a trace: ``hvd-dynamic discover``.

Horovod runs it about once a second. Where the training is, it reads in the run's folder: the samples seen are in the last
line of metrics.jsonl, the length of an epoch in events.jsonl. So the folder must be readable where horovodrun runs, and
be a new one for each training. Nothing but the standard library is imported, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ['hosts_for', 'parse_hosts', 'progress']

_TAIL = 1 << 16     # bytes, more than a line of metrics.jsonl has


def parse_hosts(text):
    """Hosts and their slots.

    Parameters
    ----------
    text : str
        ``host:slots`` separated by commas, in the order in which they are used.

    Returns
    -------
    list of (str, int)

    Raises
    ------
    ValueError
        If it is not that.

    Examples
    --------
    >>> parse_hosts('a:4,b:2')
    [('a', 4), ('b', 2)]
    """
    hosts = []
    for part in text.split(','):
        host, _, slots = part.strip().rpartition(':')
        if not host or not slots.isdigit() or int(slots) < 1 or host in dict(hosts):
            raise ValueError(f'hosts must be host:slots separated by commas, each host once, such as a:4,b:4, got {text!r}')
        hosts.append((host, int(slots)))
    return hosts


def progress(run_dir):
    """Where a training is.

    Parameters
    ----------
    run_dir : str or Path
        Its run folder; need not be there yet.

    Returns
    -------
    samples : int
        Seen by all updates that are logged; 0 before the first.
    samples_per_epoch : int or None
        None before the training has begun.
    """
    samples = length = None
    for line in reversed(_lines(Path(run_dir) / 'metrics.jsonl', _TAIL)):
        samples = line.get('samples')
        if samples is not None:
            break
    for line in _lines(Path(run_dir) / 'events.jsonl'):
        length = line.get('samples_per_epoch', length)
    return samples or 0, length


def _lines(path, tail=None):
    try:
        with open(path, 'rb') as file:
            if tail is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            data = file.read()
    except FileNotFoundError:
        return []
    found = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue        # half a line: its writer is at it, or it began before the tail
        if isinstance(value, dict):
            found.append(value)
    return found


def hosts_for(trace, run_dir, hosts):
    """The hosts that the trace gives to a training at this moment.

    Parameters
    ----------
    trace : hvd_dynamic.traces.Trace
    run_dir : str or Path
    hosts : list of (str, int)
        All that there are, with their slots; those named first are used first, so that they stay longest.

    Returns
    -------
    list of str
        Lines of ``host:slots``.

    Raises
    ------
    ValueError
        If the trace ever needs more slots than there are.

    Examples
    --------
    >>> from hvd_dynamic.traces import Trace
    >>> hosts_for(Trace('epochs', [(0, 5), (2, 8)]), '/nowhere', [('a', 4), ('b', 4)])
    ['a:4', 'b:1']
    """
    slots = sum(count for _, count in hosts)
    if slots < trace.largest:
        raise ValueError(f'hosts have {slots} slots, but the trace needs {trace.largest} workers: give more hosts or slots')
    samples, length = progress(run_dir)
    left = trace.sizes[0] if length is None else trace.size_at(samples, length)
    lines = []
    for host, count in hosts:
        if left > 0:
            lines.append(f'{host}:{min(count, left)}')
            left -= count
    return lines
