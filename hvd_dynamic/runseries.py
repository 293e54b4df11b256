"""Series of a run made fit for drawing: some hundreds of points that show what a million updates did."""
from itertools import pairwise

import numpy as np

POINTS = 1000    # about as many as a picture has columns of pixels


def segments(values):
    """Cut a series where its value changes.

    Parameters
    ----------
    values : numpy.ndarray
        The series.

    Returns
    -------
    list of tuple of int
        (start, stop) of each stretch of equal values.
    """
    values = np.nan_to_num(values)      # nothing recorded equals nothing recorded
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    return list(pairwise(edges))


def extremes(values, bins=POINTS):
    """Choose the points by which to draw a long series so that no peak and no dip is lost.

    Parameters
    ----------
    values : numpy.ndarray
        Finite values.
    bins : int
        The lowest and the highest value of each of so many equal stretches are kept, with both ends.

    Returns
    -------
    numpy.ndarray of int
        Indices in increasing order; all of them if the series is short.
    """
    count = len(values)
    if count <= 2 * bins:
        return np.arange(count)
    rows = _rows(values, -(-count // bins), fill=values[-1])
    first = np.arange(len(rows)) * rows.shape[1]
    chosen = np.concatenate([[0, count - 1], first + rows.argmin(axis=1), first + rows.argmax(axis=1)])
    return np.unique(np.minimum(chosen, count - 1))


def rolling_mean(values, window):
    """Average over a window around each point, cut off at the ends of the series.

    Parameters
    ----------
    values : numpy.ndarray
        Finite values.
    window : int
        Width in points; an even width counts as the next odd one.

    Returns
    -------
    numpy.ndarray
    """
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    low, high = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def update_rates(run):
    """Compute the samples per second of each update: its batch over its own time; pauses do not count.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    numpy.ndarray
        NaN where the time was not recorded or is not positive.
    """
    seconds = np.where(run['step_seconds'] > 0, run['step_seconds'], np.nan)
    return run['global_batch'] / seconds


def throughput(run):
    """Compute the throughput for drawing: a rolling median, not smeared over the resizes.

    A median, because the first update after a pause can take many times its usual time.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    samples, rates : numpy.ndarray
        Points of the line; samples per second. Each stretch of equal world size is drawn from end to end.
    """
    rates = update_rates(run)
    count = len(rates)
    chunk = -(-count // POINTS)
    window = min(max(count // 25, 9), 501) // chunk | 1     # in chunks, odd
    xs, ys = [], []
    for start, stop in segments(run['world_size']):
        known = start + np.flatnonzero(np.isfinite(rates[start:stop]))
        if not len(known):
            continue
        medians = np.nanmedian(_rows(rates[known], chunk), axis=1)
        smooth = _rolling_median(medians, window)
        middles = run['samples'][known[chunk // 2::chunk]]
        middles = np.append(middles, run['samples'][known[-1]])[:len(smooth)]
        before = run['samples'][start - 1] if start else run.start
        xs += [[before], middles, [run['samples'][stop - 1]]]
        ys += [smooth[:1], smooth, smooth[-1:]]
    return (np.concatenate(xs), np.concatenate(ys)) if xs else (np.array([]), np.array([]))


def epoch_starts(run):
    """Find where the epochs begin.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    samples, epochs : numpy.ndarray
        Samples seen before each epoch, and its number. After a last epoch that is complete, as far as
        the others' length tells, the next one is added.
    """
    epochs = run['epoch']
    known = np.flatnonzero(np.isfinite(epochs))
    first = known[np.flatnonzero(np.diff(epochs[known], prepend=np.nan) != 0)]
    samples = np.where(first > 0, run['samples'][first - 1], run.start)
    numbers = epochs[first]
    if len(first) > 1:
        length = np.median(np.diff(samples))
        # Not quite the length: a few samples may have been carried to the next epoch.
        if run.end - samples[-1] >= 0.99 * length:
            samples, numbers = np.append(samples, run.end), np.append(numbers, numbers[-1] + 1)
    return samples, numbers


def _rows(values, width, fill=np.nan):
    """Fold a series into rows of `width`, the last one filled up."""
    missing = -len(values) % width
    return np.append(values, np.full(missing, fill)).reshape(-1, width)


def _rolling_median(values, window):
    padded = np.pad(values, window // 2, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)
