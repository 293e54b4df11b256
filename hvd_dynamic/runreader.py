"""Reading a run's folder: one row for each update that stands, and what happened to the job.

The folder is written by a job that may be killed at any moment and go on from an earlier update, so the
files hold half-written lines and updates that were undone. This module leaves them out;
``docs/run-folder.md`` has the format.
"""
import json
import logging
import math
import numbers
from array import array
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)

FIELDS = ('time', 'update', 'epoch', 'samples', 'world_size', 'global_batch', 'lr', 'lr_scale',
          'momentum_scale', 'loss', 'step_seconds', 'noise_scale')
RESIZE_KINDS = ('resized', 'failed_over')
NOT_A_RUN = 'Give the folder that a training was started with (--run-dir), after its first update.'


@dataclass
class Run:
    """What a run's folder says.

    Parameters
    ----------
    name : str
        The folder's name.
    columns : dict of str to numpy.ndarray
        The fields of ``metrics.jsonl``, one element for each update that stands, NaN where none was recorded.
    events : list of dict
        ``events.jsonl`` in the order of the file.
    skipped : dict of str to int
        For each file with unreadable lines, how many there were.
    superseded : int
        Lines of updates that were undone by a failure or a resume.
    """

    name: str
    columns: dict
    events: list = field(default_factory=list)
    skipped: dict = field(default_factory=dict)
    superseded: int = 0

    def __getitem__(self, name):
        return self.columns[name]

    @property
    def start(self):
        """float: samples seen before the first update of the file."""
        batch = self['global_batch'][0]
        return max(0.0, self['samples'][0] - batch) if np.isfinite(batch) else 0.0

    @property
    def end(self):
        """float: samples seen after the last update."""
        return self['samples'][-1]

    @property
    def resizes(self):
        """list of dict: the events in which the world changed, announced or by a failure."""
        return [event for event in self.events if event['kind'] in RESIZE_KINDS]

    @property
    def downtimes(self):
        """list of float: the pause of each resize for which one was recorded, in seconds."""
        pauses = [event.get('downtime_seconds') for event in self.resizes]
        return [pause for pause in pauses if is_number(pause)]

    @property
    def rolled_back(self):
        """int: updates that were undone; from the events, or from the metrics where there are no events."""
        counts = [e['rolled_back_updates'] for e in self.resizes if is_number(e.get('rolled_back_updates'))]
        return int(sum(counts)) if self.events else self.superseded

    @property
    def wall_seconds(self):
        """float: from the first to the last sign of life, pauses included; NaN without any recorded time."""
        times = [event['time'] for event in self.events if is_number(event.get('time'))]
        recorded = self['time'][np.isfinite(self['time'])]
        if len(recorded):
            times += [recorded.min(), recorded.max()]
        return max(times) - min(times) if times else math.nan

    def samples_at(self, event):
        """Where on the axis of samples an event belongs.

        Parameters
        ----------
        event : dict
            An event; its own ``samples`` count, or else those after its ``update`` do.

        Returns
        -------
        float or None
            None if the event has neither.
        """
        if is_number(event.get('samples')):
            return float(event['samples'])
        if not is_number(event.get('update')):
            return None
        before = np.searchsorted(self['update'], event['update'], side='right')
        return float(self['samples'][before - 1]) if before else self.start

    def evaluations(self):
        """List the evaluations that stand: those of updates that were later undone are left out.

        Returns
        -------
        list of dict
            In the order of updates; each with numbers only in its ``metrics``.
        """
        placed = [event for event in self.events if is_number(event.get('update'))]
        standing, earliest = [], math.inf
        for event in reversed(placed):
            undone = event['update'] > earliest
            repeated = standing and standing[-1]['update'] == event['update']
            metrics = event.get('metrics')
            if event['kind'] == 'evaluated' and isinstance(metrics, dict) and not (undone or repeated):
                metrics = {name: value for name, value in metrics.items() if is_number(value)}
                standing.append({**event, 'metrics': metrics})
            earliest = min(earliest, event['update'])
        return standing[::-1]


def is_number(value):
    """Tell whether a value read from JSON is a finite number.

    Parameters
    ----------
    value : object
        Anything.

    Returns
    -------
    bool
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def standing_lines(updates):
    """Find the lines that a later line does not undo.

    A line for update `u` means that training went back to `u` or came to it: all lines before it that are for
    `u` or later are undone, also those of updates that are never reached again.

    Parameters
    ----------
    updates : numpy.ndarray
        The update of each line, in the order of the file.

    Returns
    -------
    numpy.ndarray of bool
    """
    lowest_from_here = np.minimum.accumulate(updates[::-1])[::-1]
    return updates < np.append(lowest_from_here[1:], np.inf)


def read_run(run_dir):
    """Read a run's folder.

    Parameters
    ----------
    run_dir : str or pathlib.Path
        The folder; ``metrics.jsonl`` must be in it, ``events.jsonl`` may be.

    Returns
    -------
    Run

    Raises
    ------
    FileNotFoundError
        If there is no folder or no ``metrics.jsonl`` in it.
    ValueError
        If ``metrics.jsonl`` does not hold one complete update.
    """
    run_dir = Path(run_dir)
    metrics_path, events_path = run_dir / 'metrics.jsonl', run_dir / 'events.jsonl'
    if not run_dir.is_dir():
        raise FileNotFoundError(f'{run_dir} is not a folder. {NOT_A_RUN}')
    if not metrics_path.is_file():
        raise FileNotFoundError(f'{metrics_path} does not exist. {NOT_A_RUN}')

    table, skipped = _read_metrics(metrics_path)
    if not len(table):
        raise ValueError(f'{metrics_path} holds no complete update ({skipped} unreadable lines). {NOT_A_RUN}')
    standing = standing_lines(table[:, FIELDS.index('update')])
    columns = dict(zip(FIELDS, np.ascontiguousarray(table[standing].T)))
    run = Run(run_dir.resolve().name, columns, superseded=int(np.count_nonzero(~standing)))
    _note_skipped(run, metrics_path, skipped)

    if events_path.is_file():
        def take(event):
            if not isinstance(event['kind'], str):
                raise TypeError('the kind of an event is a word')
            run.events.append(event)
        _note_skipped(run, events_path, _read_objects(events_path, take))
    return run


def _read_metrics(path):
    """Return the table (one row a line, columns as in FIELDS) and the number of unreadable lines."""
    cells = array('d')      # eight bytes a cell: a million lines as Python objects would take half a gigabyte

    all_fields = itemgetter(*FIELDS)

    def take(line):
        try:
            row = array('d', all_fields(line))
        except (KeyError, TypeError):       # a field is missing or null
            row = array('d', [math.nan if line.get(name) is None else line[name] for name in FIELDS])
        cells.extend(row)

    skipped = _read_objects(path, take)
    table = np.frombuffer(cells).reshape(-1, len(FIELDS))
    placed = np.isfinite(table[:, [FIELDS.index('update'), FIELDS.index('samples')]]).all(axis=1)
    return table[placed], skipped + int(np.count_nonzero(~placed))


def _read_objects(path, take):
    """Hand each line's object to `take`; return how many lines were not readable by JSON or by `take`."""
    skipped = 0
    # A fifth faster than json.loads, which counts with a million lines.
    decode = json.JSONDecoder().raw_decode
    with open(path, encoding='utf-8', errors='replace') as lines:
        for line in lines:
            text = line.strip()
            try:
                fields, end = decode(text)
                if end != len(text):
                    raise ValueError('more than one value')
                take(fields)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                # Only the last line can lack its end: its writer was killed, or is writing it at this moment.
                if line.endswith('\n') and text:
                    skipped += 1
    return skipped


def _note_skipped(run, path, skipped):
    if skipped:
        run.skipped[path.name] = skipped
        logger.warning('%s: %d unreadable lines were left out', path, skipped)
