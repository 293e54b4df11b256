"""Turn a run's folder into ``report.png`` and ``report.html``, a page that can be sent as one file."""
import base64
import html
import json
import os
import time
from pathlib import Path

import numpy as np

from hvd_dynamic import runpicture, runseries, runtext
from hvd_dynamic.runreader import is_number, read_run

PICTURE, PAGE = 'report.png', 'report.html'
COLUMNS = ('time (UTC)', 'update', 'samples', 'event', 'workers', 'came', 'went', 'rolled back', 'downtime',
           'lr after', 'batch after', 'details')
SHOWN = {'time', 'update', 'samples', 'kind', 'old_size', 'new_size', 'added', 'removed',
         'rolled_back_updates', 'downtime_seconds', 'lr', 'global_batch', 'metrics'}
LOWER_IS_BETTER = ('loss', 'err', 'perplexity')

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #666; --line: #ddd; --back: #fff; --band: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a0a0a0; --line: #3a3d42; --back: #16181b; --band: #1e2125; }
}
body { margin: 2rem auto; padding: 0 1rem; max-width: 76rem; color: var(--ink); background: var(--back);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { margin-bottom: 0; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; }
.headline, .note { color: var(--soft); margin-top: 0.2rem; }
img { display: block; width: 100%; max-width: 1000px; margin: 1.5rem auto; border-radius: 8px;
      border: 1px solid var(--line); }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.8rem; text-align: left; vertical-align: top;
         border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--band); }
td { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
.wide td:not(:last-child) { white-space: nowrap; }
.wide td:last-child { min-width: 12rem; }
.grow { color: #009E73; } .shrink { color: #C98A00; } .failure { color: #D55E00; font-weight: 600; }
"""


def write_report(run_dir):
    """Draw a run and describe it on a page.

    Parameters
    ----------
    run_dir : str or pathlib.Path
        The run's folder, as ``docs/run-folder.md`` describes it. The run may still be going on.

    Returns
    -------
    list of pathlib.Path
        ``report.png`` and ``report.html``, in the run's folder. An older report is replaced at once:
        a reader never sees half of one.

    Raises
    ------
    FileNotFoundError
        If there is no folder or no ``metrics.jsonl`` in it.
    ValueError
        If ``metrics.jsonl`` does not hold one complete update.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    png = runpicture.render(run)
    page = build_page(run, png).encode('utf-8', 'replace')
    return [_write_atomically(run_dir / PICTURE, png), _write_atomically(run_dir / PAGE, page)]


def build_page(run, png):
    """Build the page about a run.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.
    png : bytes
        Its picture.

    Returns
    -------
    str
        HTML that needs no other file.
    """
    name = html.escape(run.name)
    notes = [f'{count:,} unreadable lines of {file} were left out.' for file, count in run.skipped.items()]
    if run.superseded:
        notes.append(f'{run.superseded:,} lines of metrics.jsonl belong to updates that were undone; '
                     'the picture shows what took their place.')
    picture = base64.b64encode(png).decode('ascii')
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{name}</h1>
<p class="headline">{html.escape(runtext.headline(run))}</p>
<img src="data:image/png;base64,{picture}"
     alt="World size, learning rate, loss and throughput over the samples seen">
<h2>Summary</h2>
<table><tbody>
{_summary_rows(run)}
</tbody></table>
{''.join(f'<p class="note">{html.escape(note)}</p>' for note in notes)}
<h2>Events</h2>
{_events_table(run)}
</body>
</html>
"""


def summary(run):
    """Put a run into numbers.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    dict of str to str
        What, and how much, as text.
    """
    epochs = run['epoch'][np.isfinite(run['epoch'])]
    rates = runseries.update_rates(run)
    rates = rates[np.isfinite(rates)]
    loss = run['loss'][np.isfinite(run['loss'])]
    failures = sum(event['kind'] == 'failed_over' for event in run.resizes)
    rows = {
        'samples': f'{run.end:,.0f}',
        'epochs (the last may be incomplete)': f'{len(np.unique(epochs)):,}' if len(epochs) else '–',
        'updates': f'{run["update"][-1]:,.0f}',
        'time from first to last record': _duration(run.wall_seconds),
        'time in updates': _duration(np.nansum(run['step_seconds'])),
        'throughput, median': f'{_digits(np.median(rates))} samples/s' if len(rates) else '–',
        'resizes': f'{len(run.resizes):,}' + (f', {failures:,} of them by failure' if failures else ''),
        'updates rolled back': f'{run.rolled_back:,}',
    }
    if run.downtimes:
        rows['downtime of a resize'] = (f'median {np.median(run.downtimes):.2f} s, '
                                        f'longest {max(run.downtimes):.2f} s, '
                                        f'in all {sum(run.downtimes):.2f} s')
    noise = run['noise_scale'][np.isfinite(run['noise_scale'])]
    if len(noise):
        batch = run['global_batch'][np.isfinite(run['noise_scale'])][-1]
        rows['gradient noise scale at the end'] = (
            f'{_digits(noise[-1])} samples; at a global batch of {batch:,.0f} a sample is worth '
            f'{100 * noise[-1] / (noise[-1] + batch):.0f} % of one in a small batch')
    if len(loss):
        tail = loss[-max(5, len(loss) // 60):]
        rows['training loss at the end'] = f'{tail.mean():.4g} (mean of the last {len(tail):,})'
    if len(loss) < len(run['loss']):
        rows['updates without a finite loss'] = f'{len(run["loss"]) - len(loss):,}'
    rows.update(_metric_rows(run.evaluations()))
    return rows


def _metric_rows(evaluations):
    rows = {}
    for name in dict.fromkeys(name for event in evaluations for name in event['metrics']):
        values = [(event['metrics'][name], event['update'])
                  for event in evaluations if name in event['metrics']]
        lower = any(part in name.lower() for part in LOWER_IS_BETTER)
        best, update = (min if lower else max)(values, key=lambda pair: pair[0])
        final, best = runtext.metric_text(name, values[-1][0]), runtext.metric_text(name, best)
        rows[f'evaluated {name}'] = f'final {final}, best {best} (update {update:,})'
    return rows


def _summary_rows(run):
    return '\n'.join(f'<tr><th scope="row">{html.escape(what)}</th><td>{html.escape(value)}</td></tr>'
                     for what, value in summary(run).items())


def _events_table(run):
    if not run.events:
        return '<p class="note">No events were recorded.</p>'
    head = ''.join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = []
    for event in run.events:
        cells = dict(zip(COLUMNS, map(html.escape, _event_cells(run, event)), strict=True))
        cells['event'] = f'<span class="{runtext.mark_kind(event) or "other"}">{cells["event"]}</span>'
        rows.append('<tr>' + ''.join(f'<td>{cell}</td>' for cell in cells.values()) + '</tr>')
    return (f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n' + '\n'.join(rows)
            + '\n</tbody></table></div>')


def _event_cells(run, event):
    """Return the texts of an event's row, in the order of COLUMNS."""
    samples, downtime = run.samples_at(event), event.get('downtime_seconds')
    return (
        _moment(event.get('time')),
        _number(event.get('update')),
        _number(samples),
        event['kind'],
        runtext.size_text(event),
        _names(event.get('added')),
        _names(event.get('removed')),
        _number(event.get('rolled_back_updates')),
        f'{downtime:.2f} s' if is_number(downtime) else '',
        _number(event.get('lr')),
        _number(event.get('global_batch')),
        _details(event),
    )


def _details(event):
    """Write the metrics, and whatever else an event holds that has no column of its own."""
    metrics = event.get('metrics')
    known = metrics.items() if isinstance(metrics, dict) else ()
    parts = [f'{name} {runtext.metric_text(name, value) if is_number(value) else value}'
             for name, value in known]
    for name, value in event.items():
        if name not in SHOWN:
            text = _number(value) or (value if isinstance(value, str) else json.dumps(value))
            parts.append(f'{name} {text}')
    return ', '.join(parts)


def _names(workers):
    return ', '.join(str(worker) for worker in workers) if isinstance(workers, list) else ''


def _number(value):
    if not is_number(value):
        return ''
    return f'{value:,.0f}' if value == int(value) else _digits(value)


def _digits(value):
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.5g}'


def _moment(seconds):
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))
    except (TypeError, ValueError, OverflowError, OSError):
        return ''


def _duration(seconds):
    if not is_number(seconds):
        return '–'
    if seconds < 60:
        return f'{seconds:.1f} s'
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours:,} h {minutes:02d} min {rest:02d} s' if hours else f'{minutes} min {rest:02d} s'


def _write_atomically(path, data):
    half = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        half.write_bytes(data)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
    return path
