"""The run's folder: metrics.jsonl, events.jsonl, and the audit of samples. docs/run-folder.md says what is in them."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from pathlib import Path

__all__ = ['RunLog']

log = logging.getLogger('hvd_dynamic')


class RunLog:
    """Writes a run's folder; pass one to `GluonState`. The worker that is rank 0 at the time writes.

    Parameters
    ----------
    run_dir : str or Path
        Made if it is not there. A run that goes on appends to what is there.
    audit_samples : bool, default False
        Have every worker write which samples it used, one line a committed update.

    Raises
    ------
    ValueError
        If the folder cannot be made or written to.
    """

    def __init__(self, run_dir, audit_samples=False):
        self.run_dir = Path(run_dir)
        self.audit_samples = bool(audit_samples)
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if not os.access(self.run_dir, os.W_OK):
                raise PermissionError('it is not writable')
        except OSError as error:
            raise ValueError(f'run_dir={str(run_dir)!r} cannot be used: {error}; give a folder that can be written to') from None
        self._pending = []
        self._failed = False

    def metrics(self, record):
        """One line for an update that was confirmed (`trainer.UpdateRecord`)."""
        self._append('metrics.jsonl', [{
            'time': time.time(), 'update': record.update, 'epoch': record.cut.epoch, 'samples': record.samples,
            'world_size': record.world_size, 'global_batch': record.cut.global_batch, 'lr': record.decision.lr,
            'lr_scale': record.decision.lr_scale, 'momentum_scale': record.decision.momentum_scale,
            'loss': record.loss if record.loss is None or math.isfinite(record.loss) else None,
            'step_seconds': record.seconds}])

    def event(self, kind, update, **fields):
        """One line in events.jsonl."""
        self._append('events.jsonl', [{'time': time.time(), 'update': update, 'kind': kind, **fields}])

    # -- the audit ---------------------------------------------------------------------------------------------

    def update_started(self, update, cut, slots):
        """Remember an update until it is known to be committed by all; `slots` by rank."""
        if self.audit_samples:
            self._pending.append((update, cut, slots))

    def settle(self, update, sampler, ranks):
        """Write the lines of all updates up to `update` for these ranks: every worker has committed them."""
        done = [p for p in self._pending if p[0] <= update]
        self._pending = [p for p in self._pending if p[0] > update]
        self._write_audit(done, sampler, ranks)

    def settle_lost(self, update, sampler, slots):
        """After a failure: write what workers that were lost could not, up to `update`, and forget the rest."""
        done = [p for p in self._pending if p[0] <= update]
        for slot in slots:
            written = self._last_audited(slot)
            for number, cut, by_rank in done:
                if number > written and slot in by_rank:
                    self._write_audit([(number, cut, by_rank)], sampler, [by_rank.index(slot)])

    def forget(self):
        """What was started and not settled has been rolled back."""
        self._pending = []

    def _write_audit(self, updates, sampler, ranks):
        for rank in ranks:
            lines, name = [], None
            for number, cut, slots in updates:
                offset, count = cut.part(rank)
                lines.append({'update': number, 'epoch': cut.epoch, 'carried': max(0, min(count, cut.carried - offset)),
                              'indices': sampler.indices(cut, rank).tolist()})
                name = _audit_name(slots[rank])
            if lines:
                self._append(name, lines)

    def _last_audited(self, slot):
        """The last update in another worker's file; a line that its death cut off is taken away."""
        path = self.run_dir / _audit_name(slot)
        if not path.exists():
            return 0
        with open(path, 'r+b') as file:
            data = file.read()
            whole = data[:data.rfind(b'\n') + 1]
            if len(whole) < len(data):
                file.truncate(len(whole))
        lines = whole.splitlines()
        return json.loads(lines[-1])['update'] if lines else 0

    def _append(self, name, lines):
        try:
            with open(self.run_dir / name, 'a', encoding='utf-8') as file:
                file.write(''.join(json.dumps(line) + '\n' for line in lines))
        except OSError as error:
            # Days of training are worth more than a log: say it once and go on.
            if not self._failed:
                self._failed = True
                log.warning('cannot write %s: %s; training goes on, the run folder will lack lines', self.run_dir / name, error)


def _audit_name(slot):
    host, _, local_rank = slot.rpartition(':')
    return f'samples-{host}-{local_rank}.jsonl'
