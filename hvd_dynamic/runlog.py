"""The run's folder: metrics.jsonl, events.jsonl, and the audit of samples. docs/run-folder.md says what is in them."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import time
from pathlib import Path

__all__ = ['RunLog']

log = logging.getLogger('hvd_dynamic')

_TAIL = 1 << 20       # bytes, more than any line has


class RunLog:
    """Writes a run's folder; pass one to `GluonState`. The worker that is rank 0 at the time writes.

    Parameters
    ----------
    run_dir : str or Path
        Made if it is not there. A run that goes on appends to what is there.
    audit_samples : bool, default False
        Have every worker write which samples it used, one line a committed update.
    digests : bool, default False
        Have the last update of each epoch tell a digest of all weights (`GluonState.weights_digest`), for
        `hvd-dynamic compare`. With logical workers it does so anyway.

    Raises
    ------
    ValueError
        If the folder cannot be made or written to.
    """

    def __init__(self, run_dir, audit_samples=False, digests=False):
        self.run_dir = Path(run_dir)
        self.digests = bool(digests)
        self.audit_samples = bool(audit_samples)
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if not os.access(self.run_dir, os.W_OK):
                raise PermissionError('it is not writable')
        except OSError as error:
            raise ValueError(f'run_dir={str(run_dir)!r} cannot be used: {error}; '
                             f'give a folder that can be written to') from None
        self._failed = False
        self._begun = set()         # files that this worker has written to in this round
        # Updates that another worker may not have written by the time it dies: number -> (record, slots by rank).
        self._recent = {}
        self._settled = self._settled_before = 0

    def metrics(self, record):
        """One line for an update that was confirmed (`trainer.UpdateRecord`)."""
        self._append('metrics.jsonl', [{
            'time': time.time(), 'update': record.update, 'epoch': record.cut.epoch, 'samples': record.samples,
            'world_size': record.world_size, 'global_batch': record.cut.global_batch, 'lr': record.decision.lr,
            'lr_scale': record.decision.lr_scale, 'momentum_scale': record.decision.momentum_scale,
            'loss': _finite(record.loss),
            'step_seconds': record.seconds, 'noise_scale': _finite(record.noise_scale), **record.details}])

    def event(self, kind, update, **fields):
        """One line in events.jsonl."""
        self._append('events.jsonl', [{'time': time.time(), 'update': update, 'kind': kind, **fields}])

    # -- what others may be unable to write ------------------------------------------------------------------------

    def started(self, record, slots):
        """Remember an update (on every worker); `slots` are the workers of its world, by rank."""
        self._recent[record.update] = record, slots

    def settle(self, update, sampler, ranks):
        """Audit all updates up to `update` for these ranks: every worker has committed them."""
        if update <= self._settled:
            return
        if self.audit_samples:
            self._write_audit([u for u in self._recent if self._settled < u <= update], sampler, ranks)
        # A worker that has begun the next update may still be one settling behind.
        self._recent = {u: known for u, known in self._recent.items() if u > self._settled_before}
        self._settled_before, self._settled = self._settled, update

    def recover(self, update, sampler, lost):
        """After a failure: write what the workers in the slots `lost` have not, up to `update` (one worker does it)."""
        known = [u for u in sorted(self._recent) if u <= update]
        written = self._last_update('metrics.jsonl')
        for u in known:
            if u > written:
                self.metrics(self._recent[u][0])
        for slot in lost if self.audit_samples else ():
            written = self._last_update(_audit_name(slot))
            for u in known:
                slots = self._recent[u][1]
                if u > written and slot in slots:
                    self._write_audit([u], sampler, [slots.index(slot)])

    def begin_round(self, update):
        """A new world goes on from `update`; what was begun after it has been rolled back.

        What is remembered of the updates before stays until all workers have begun the round: one that is lost before may
        not have written them.
        """
        self._recent, self._begun = {u: known for u, known in self._recent.items() if u <= update}, set()
        self._settled = self._settled_before = update

    def pack(self):
        """What is remembered, for a process that takes this one's place (`unpack`)."""
        return pickle.dumps([self._recent, self._settled, self._settled_before])

    def unpack(self, data):
        """Take up what `pack` gave."""
        self._recent, self._settled, self._settled_before = pickle.loads(data)

    def rewind(self, update):
        """A job goes on from a checkpoint: cut what is beyond `update` from metrics and audit, as that work is lost.

        Every worker may do it at once, on one folder or on folders of their own: all cut at the same place.

        Returns
        -------
        int
            How many updates were lost, as far as metrics.jsonl tells.
        """
        lost = 0
        for path in sorted([self.run_dir / 'metrics.jsonl', *self.run_dir.glob('samples-*.jsonl')]):
            try:
                last = _cut(path, update)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning('cannot cut %s back to update %d: %s', path, update, error)
                continue
            if path.name == 'metrics.jsonl':
                lost = max(0, last - update)
        return lost

    def _write_audit(self, updates, sampler, ranks):
        for rank in ranks:
            by_file = {}
            for u in updates:
                record, slots = self._recent[u]
                offset, count = record.cut.part(rank)
                by_file.setdefault(_audit_name(slots[rank]), []).append({
                    'update': u, 'epoch': record.cut.epoch,
                    'carried': max(0, min(count, record.cut.carried - offset)),
                    'indices': sampler.indices(record.cut, rank).tolist()})
            for name, lines in by_file.items():
                self._append(name, lines)

    def _last_update(self, name):
        """The last update in a file that a lost worker wrote; a line that its death cut off is taken away."""
        path = self.run_dir / name
        if not path.exists():
            return 0
        with open(path, 'r+b') as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - _TAIL))
            data = file.read()
            whole = data[:data.rfind(b'\n') + 1]
            if len(whole) < len(data):
                file.truncate(start + len(whole))
        lines = whole.splitlines()
        return json.loads(lines[-1])['update'] if lines else 0

    def _append(self, name, lines):
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        try:
            with open(self.run_dir / name, 'ab') as file:
                if name not in self._begun and file.tell() > 0:
                    # A line that an earlier writer's death cut off must not swallow the first one of ours.
                    with open(self.run_dir / name, 'rb') as old:
                        old.seek(-1, os.SEEK_END)
                        text = text if old.read() == b'\n' else '\n' + text
                self._begun.add(name)
                file.write(text.encode())
        except OSError as error:
            # Days of training are worth more than a log: say it once and go on.
            if not self._failed:
                self._failed = True
                log.warning('cannot write %s: %s; training goes on, but the run folder will lack lines',
                            self.run_dir / name, error)


def _finite(value):
    return value if value is None or math.isfinite(value) else None


def _cut(path, update):
    """Cut a file after its last whole line of at most `update`; returns the highest update that was in it."""
    end = place = last = 0
    with open(path, 'r+b') as file:
        for line in file:
            place += len(line)
            try:
                number = json.loads(line)['update']
            except (ValueError, LookupError, TypeError):
                continue        # a line that a writer's death cut off
            last = max(last, number)
            if number <= update:
                end = place
        if end < place:
            file.truncate(end)
    return last


def _audit_name(slot):
    host, _, local_rank = slot.rpartition(':')
    return f'samples-{host}-{local_rank}.jsonl'
