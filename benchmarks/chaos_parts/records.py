"""Reading the files of JSON lines that a job writes, while it writes them."""

import json
import os

__all__ = ['Records', 'Tail', 'read_lines']


class Tail:
    """The lines of a growing file; it is read anew if it was cut or replaced.

    Parameters
    ----------
    path : Path
        Need not be there yet.
    """

    def __init__(self, path):
        self.path = path
        self._identity, self._offset, self._lines = None, 0, []

    def lines(self):
        """All whole lines so far, as a list of dict."""
        try:
            file = open(self.path, 'rb')
        except FileNotFoundError:
            return self._lines
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._identity, self._offset, self._lines = identity, 0, []
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b'\n') + 1
        self._offset += end
        self._lines += parse(data[:end])
        return self._lines


class Records:
    """What the workers of a chaos run have written so far.

    Parameters
    ----------
    folder : Path
        Of the chaos run.
    """

    def __init__(self, folder):
        self._folder = folder
        self._metrics = Tail(folder / 'run' / 'metrics.jsonl')
        self._events = Tail(folder / 'run' / 'events.jsonl')
        self._reports = {}

    def metrics(self):
        """Lines of metrics.jsonl."""
        return self._metrics.lines()

    def events(self, *kinds):
        """Lines of events.jsonl of these kinds, or all."""
        return [event for event in self._events.lines() if not kinds or event['kind'] in kinds]

    def reports(self, kind):
        """What the training script reported, ordered by time."""
        for path in self._folder.glob('reports-*.jsonl'):
            self._reports.setdefault(path.name, Tail(path))
        return sorted((r for tail in self._reports.values() for r in tail.lines() if r['kind'] == kind),
                      key=lambda report: report['time'])

    def last(self):
        """The last line of metrics.jsonl; before the first, one that says update 0."""
        metrics = self.metrics()
        return metrics[-1] if metrics else {'update': 0, 'epoch': 0, 'time': 0.0, 'world_size': 0}


def read_lines(path):
    """The whole lines of a file of JSON lines."""
    return Tail(path).lines()


def parse(data):
    """Lines to dicts; one that its writer's death cut off is left out, as readers of a run's folder do."""
    parsed = []
    for line in data.splitlines():
        try:
            parsed.append(json.loads(line))
        except ValueError:
            continue
    return parsed
