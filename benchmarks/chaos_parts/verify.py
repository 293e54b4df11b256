"""What the files of a chaos run say when it is over: samples, learning rates, logs, weights."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field

from hvd_dynamic.schedule import DynamicSchedule

from .facts import BATCH, REFERENCE_BATCH, SAMPLES, base_lr
from .records import Records, read_lines

__all__ = ['Findings', 'verify']

#: Updates that a failure may undo with a commit each update: the one that was under way, and the one before it, which some
#: workers knew to be done and others did not.
ROLLED_BACK_AT_MOST = 2


@dataclass
class Findings:
    """What was found.

    Attributes
    ----------
    faults : list of tuple
        ``(what, update or None, kind)``.
    numbers : dict of str to float
        For the table.
    """

    faults: list = field(default_factory=list)
    numbers: dict = field(default_factory=dict)

    def fault(self, what, update=None, kind='other'):
        """Note a fault."""
        self.faults.append((what, update, kind))


def verify(folder, ended):
    """Check all files.

    Parameters
    ----------
    folder : Path
    ended : bool
        Whether the training came to its end; if not, the last updates may lack lines.

    Returns
    -------
    Findings
    """
    records, findings = Records(folder), Findings()
    standing = check_updates(records, findings)
    if standing:
        check_samples(folder, standing, ended, findings)
    check_logs(folder, findings)
    check_end(records, ended, findings)
    return findings


def check_updates(records, findings):
    """Replay the run: each update follows the last one, each with the batch and the learning rate that the policy gives.

    Returns
    -------
    dict of int to dict, or None
        The lines of metrics.jsonl that stand, by update. None if lines are lost, so that nothing more can be said.
    """
    schedule = DynamicSchedule(base_lr, REFERENCE_BATCH, samples_per_epoch=SAMPLES)
    # After each update, the position of the schedule, as a commit would keep it.
    positions, standing, update = {0: schedule.state_dict()}, {}, 0
    size, rolled_back, lost_by_restarts, lines = None, 0, 0, 0
    for kind, line in in_order(records):
        if kind == 'metrics':
            lines += 1
            if line['update'] != update + 1:
                findings.fault(f"update {line['update']} follows update {update} in metrics.jsonl", update, 'lost metrics')
                return None
            update = line['update']
            schedule.load_state_dict(positions[update - 1])
            expected = schedule.advance(line['global_batch'])
            positions[update], standing[update] = schedule.state_dict(), line
            if (line['lr'], line['lr_scale'], line['momentum_scale'], line['samples']) != (
                    expected.lr, expected.lr_scale, expected.momentum_scale, schedule.samples_seen):
                findings.fault(f'update {update} has lr {line["lr"]}, scale {line["lr_scale"]}, rho '
                               f'{line["momentum_scale"]}, samples {line["samples"]}; the policy gives {expected}, '
                               f'{schedule.samples_seen}', update, 'lr')
            if line['world_size'] != size or line['global_batch'] > size * BATCH:
                findings.fault(f'update {update} was done by {line["world_size"]} workers with a batch of '
                               f'{line["global_batch"]}; the last event says {size} workers', update, 'lost events')
        elif line['kind'] in ('started', 'resized', 'failed_over', 'resumed'):
            if line['update'] not in positions or line['update'] > update:
                findings.fault(f'{line["kind"]} at update {line["update"]}, but metrics.jsonl ends with {update}', update,
                               'lost metrics')
                return None
            undone = update - line['update']
            if line['kind'] == 'resumed':
                lost_by_restarts += line['undone_updates']
            elif undone > ROLLED_BACK_AT_MOST or undone and line['kind'] != 'failed_over':
                findings.fault(f'{line["kind"]} at update {line["update"]} undid {undone} updates', update, 'rolled back')
            rolled_back += line.get('rolled_back_updates', 0)
            if line.get('rolled_back_updates', 0) > ROLLED_BACK_AT_MOST:
                findings.fault(f'{line["kind"]} rolled back {line["rolled_back_updates"]} updates', update, 'rolled back')
            update, size = line['update'], line['new_size'] if 'new_size' in line else line['world_size']
            schedule.load_state_dict(positions[update])
            schedule.set_global_batch(line['global_batch'])
            positions[update] = schedule.state_dict()
            standing = {u: m for u, m in standing.items() if u <= update}
    pauses = sorted(e['downtime_seconds'] for e in records.events('resized', 'failed_over'))
    findings.numbers.update({
        'updates that stand': len(standing), 'updates rolled back': rolled_back,
        'updates done again after restarts': lost_by_restarts,
        'resizes': len(records.events('resized')), 'failovers': len(records.events('failed_over')),
        'checkpoints': len(records.events('checkpointed')), 'resumes': len(records.events('resumed')),
        'pauses': (pauses[0], pauses[len(pauses) // 2], pauses[-1]) if pauses else None})
    return standing


def in_order(records):
    """Metrics and events, by time; without events of work that a restart has lost, whose metrics are cut away."""
    events = []
    for event in records.events():
        if event['kind'] == 'resumed':
            events = [earlier for earlier in events if earlier['update'] <= event['update']]
        events.append(event)
    merged = [('metrics', line) for line in records.metrics()] + [('event', line) for line in events]
    return sorted(merged, key=lambda pair: pair[1]['time'])


def check_samples(folder, standing, ended, findings):
    """Each epoch has every sample once, over all workers."""
    by_update = {}
    for path in sorted((folder / 'run').glob('samples-*.jsonl')):
        for line in read_lines(path):
            by_update.setdefault(line['update'], []).append((path.stem, line))
    uses, last_epoch = Counter(), max((line['epoch'] for line in standing.values()), default=0)
    checked = [u for u in standing if ended or u <= max(standing) - 5]      # else the last ones were not committed
    for update in checked:
        parts = by_update.get(update, [])
        if len({name for name, _ in parts}) < len(parts):
            findings.fault(f'the audit has update {update} twice in a file', update, 'samples twice')
        count = sum(len(line['indices']) for _, line in parts)
        if count != standing[update]['global_batch']:
            findings.fault(f'the audit has {count} samples for update {update}, which used '
                           f'{standing[update]["global_batch"]}', update, 'lost samples')
        for _, line in parts:
            uses.update((line['epoch'] - (i < line['carried']), index) for i, index in enumerate(line['indices']))
    extra = sorted(set(by_update) - set(standing))
    if ended and extra:
        findings.fault(f'the audit has updates that do not stand: {extra[:5]}', extra[0], 'samples twice')
    # Fewer samples than workers remain after the last epoch.
    lost = {epoch: SAMPLES - sum(1 for e, _ in uses if e == epoch) for epoch in range(last_epoch + 1)}
    for epoch, missing in lost.items():
        left_over = 0 if epoch < last_epoch else standing[max(standing)]['world_size'] - 1
        if missing > left_over and (ended or epoch < last_epoch - 1):
            findings.fault(f'epoch {epoch} lacks {missing} samples', _last_update_of(standing, epoch), 'lost samples')
    twice = [use for use, count in uses.items() if count > 1]
    for epoch in sorted({epoch for epoch, _ in twice}):
        findings.fault(f'epoch {epoch} has samples twice: {[i for e, i in twice if e == epoch][:5]}',
                       _last_update_of(standing, epoch), 'samples twice')
    findings.numbers.update({
        'epochs': last_epoch + 1, 'samples trained': sum(uses.values()),
        'samples lost': sum(missing for epoch, missing in lost.items() if epoch < last_epoch), 'samples twice': len(twice)})


def _last_update_of(standing, epoch):
    return max((u for u, line in standing.items() if line['epoch'] == epoch), default=None)


def check_logs(folder, findings):
    """No worker died of itself."""
    for path in sorted(folder.glob('log-*.txt')):
        lines = path.read_text(errors='replace').splitlines()
        aborted = [line for line in lines
                   if re.search(r'(status|code) (134|139|-6|-11)\b|Fatal Python error', line)]
        # Lines of workers begin with their rank; horovodrun's own are its own affair.
        traces = [i for i, line in enumerate(lines) if line.startswith('[') and 'Traceback' in line]
        for line in aborted:
            findings.fault(f'{path.name}: {line}', kind='dead survivor')
        for i in traces:
            findings.fault(f'{path.name}, line {i + 1}:\n' + '\n'.join(lines[i:i + 25]), kind='traceback')


def check_end(records, ended, findings):
    """All workers ended with the same weights, and the run's folder says so."""
    if not ended:
        return
    last = records.last()
    ends = [report for report in records.reports('end') if report['update'] == last['update']]
    if len(ends) != last['world_size'] or len({report['digest'] for report in ends}) != 1:
        findings.fault(f'{last["world_size"]} workers should have ended with the same weights; they reported '
                       f'{json.dumps(ends)}', last['update'], 'disagreement')
    if not records.events('finished'):
        findings.fault('events.jsonl has no "finished"', last['update'], 'lost events')
    for report in ends[:1]:
        findings.numbers['accuracy at the end'] = report['accuracy']
