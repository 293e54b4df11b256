"""Words for what is in a run: the texts that the picture and the page share."""
from hvd_dynamic.runreader import is_number


def main_metric(evaluations):
    """Choose the metric to show of the evaluations.

    Parameters
    ----------
    evaluations : list of dict
        As from `Run.evaluations`.

    Returns
    -------
    str or None
        The accuracy if there is one, or else the mean over the classes of a detector or of masks (mAP, mIoU), or else
        another accuracy, or the first metric that is not a loss.
    """
    names = list(dict.fromkeys(name for event in evaluations for name in event['metrics']))
    names.sort(key=lambda name: (name != 'accuracy', name.lower() not in ('map', 'miou'), 'acc' not in name.lower(),
                                 'loss' in name.lower()))
    return names[0] if names else None


def metric_text(name, value):
    """Write a metric for people: accuracies as percentages.

    Parameters
    ----------
    name : str
        The metric's name.
    value : float
        Its value.

    Returns
    -------
    str
    """
    return f'{100 * value:.2f} %' if is_share(name, [value]) else f'{value:.4g}'


def is_share(name, values):
    """Tell whether a metric is an accuracy between 0 and 1.

    Parameters
    ----------
    name : str
        The metric's name.
    values : list of float
        Its values.

    Returns
    -------
    bool
    """
    return 'acc' in name.lower() and all(0 <= value <= 1 for value in values)


def mark_kind(event):
    """Say how a resize is marked.

    Parameters
    ----------
    event : dict
        An event.

    Returns
    -------
    str or None
        grow, shrink, swap, failure or resume; None for an event that is not marked.
    """
    if event['kind'] == 'failed_over':
        return 'failure'
    if event['kind'] == 'resumed':
        return 'resume'
    if event['kind'] != 'resized':
        return None
    old, new = event.get('old_size'), event.get('new_size')
    if not (is_number(old) and is_number(new)) or old == new:
        return 'swap'
    return 'grow' if new > old else 'shrink'


def size_text(event):
    """Write the change of the world size.

    Parameters
    ----------
    event : dict
        An event.

    Returns
    -------
    str
        Like ``2→4``; empty where a size is not recorded.
    """
    old, new = event.get('old_size'), event.get('new_size')
    return f'{old:.0f}→{new:.0f}' if is_number(old) and is_number(new) else ''


def headline(run):
    """Say in a line what came of a run.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    str
    """
    failures = sum(event['kind'] == 'failed_over' for event in run.resizes)
    resizes = _counted(len(run.resizes), 'resize') + (f' ({failures} by failure)' if failures else '')
    parts = [f'{run.end:,.0f} samples', resizes]
    evaluations = run.evaluations()
    name = main_metric(evaluations)
    if name is not None:
        final = [event['metrics'][name] for event in evaluations if name in event['metrics']][-1]
        parts.append(f'final {name} {metric_text(name, final)}')
    if run.downtimes:
        parts.append(f'{sum(run.downtimes):,.1f} s of downtime')
    return ' · '.join(parts)


def _counted(count, word):
    return f'{count:,} {word}' + ('' if count == 1 else 's')
