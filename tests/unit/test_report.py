"""The report of a run's folder: what is read, what is drawn, what the page says."""
import base64
import functools
import io
import json
import logging
import math
import random
import re
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from hvd_dynamic import runpicture, runseries, runtext
from hvd_dynamic.report import build_page, summary, write_report
from hvd_dynamic.runreader import read_run, standing_lines

START = 1_700_000_000.0


def write_lines(path, objects):
    path.write_text(''.join(json.dumps(line) + '\n' for line in objects), encoding='utf-8')


def metric_line(update, **fields):
    """Build a line of metrics.jsonl: 100 samples an update, half a second each."""
    line = {'time': START + update / 2, 'update': update, 'epoch': 0, 'samples': 100 * update,
            'world_size': 2, 'global_batch': 100, 'lr': 0.1, 'lr_scale': 1.0, 'momentum_scale': 1.0,
            'loss': 1.0, 'step_seconds': 0.5}
    return {**line, **fields}


def make_run(folder, updates=200, resizes=3, failures=0, evaluate=True, epochs=8, seed=0, decay='cosine',
             top=8):
    """Write the folder of a training that never was, with resizes at random updates."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    at = sorted(rng.sample(range(2, updates), resizes))
    failing = set(rng.sample(at, failures))
    sizes = [2]
    for update in range(1, updates):
        old = sizes[-1]
        others = [size for size in range(1, top + 1) if size != old]
        fewer = old - 1 if old > 1 else 2
        sizes.append(old if update not in at else fewer if update in failing else rng.choice(others))
    total = 32 * sum(sizes)

    clock, samples, epoch, scale = START, 0, 0, 1.0
    events = [{'time': clock, 'update': 0, 'kind': 'started', 'world_size': 2}]
    metrics = []
    for update, size in enumerate(sizes, 1):
        batch = 32 * size
        part = samples / total
        samples += batch
        step = 0.02 * rng.lognormvariate(0, 0.15) * (1 + 0.03 * size)
        clock += step
        base = {'cosine': 0.2 * (1 + math.cos(math.pi * part)), 'steps': 0.4 * 0.1 ** int(4 * part)}[decay]
        scale += (size / 2 - scale) * min(1, 60 / updates)
        loss = (2.3 * math.exp(-5 * part) + 0.04) * rng.lognormvariate(0, 0.3)
        metrics.append({'time': round(clock, 3), 'update': update, 'epoch': epoch, 'samples': samples,
                        'world_size': size, 'global_batch': batch, 'lr': base * scale, 'lr_scale': scale,
                        'momentum_scale': 1.0, 'loss': loss, 'step_seconds': round(step, 5)})
        if samples * epochs // total > epoch:
            if evaluate:
                accuracy = 0.98 - 0.7 * math.exp(-4.5 * part) * rng.lognormvariate(0, 0.1)
                events.append({'time': clock, 'update': update, 'epoch': epoch, 'samples': samples,
                               'kind': 'evaluated', 'metrics': {'accuracy': accuracy, 'loss': loss}})
            epoch += 1
        if update in at:
            new = sizes[update]
            downtime = rng.uniform(0.4, 3) * (4 if update in failing else 1)
            clock += downtime
            slots = [f'node{slot // 2}:{slot % 2}' for slot in range(max(size, new))]
            events.append({'time': clock, 'update': update, 'old_size': size, 'new_size': new,
                           'kind': 'failed_over' if update in failing else 'resized',
                           'added': slots[size:], 'removed': slots[new:size],
                           'rolled_back_updates': int(update in failing), 'downtime_seconds': downtime,
                           'lr': base * scale, 'lr_scale': scale, 'global_batch': 32 * new})
    events.append({'time': clock, 'update': updates, 'kind': 'finished'})
    write_lines(folder / 'metrics.jsonl', metrics)
    write_lines(folder / 'events.jsonl', events)
    return folder


# -- reading -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder with ten plain updates and no events."""
    write_lines(tmp_path / 'metrics.jsonl', [metric_line(update) for update in range(1, 11)])
    return tmp_path


def test_a_torn_last_line_is_left_out_silently(folder, caplog):
    with open(folder / 'metrics.jsonl', 'a') as file:
        file.write(json.dumps(metric_line(11))[:40])
    with caplog.at_level(logging.WARNING):
        run = read_run(folder)
    assert run['update'].tolist() == list(range(1, 11))
    assert run.skipped == {} and not caplog.records


def test_a_last_line_without_its_end_counts_if_it_is_complete(folder):
    with open(folder / 'metrics.jsonl', 'a') as file:
        file.write(json.dumps(metric_line(11)))
    assert read_run(folder)['update'][-1] == 11


@pytest.mark.parametrize('broken', [
    '{"time": 1, "upda', 'not json', '[1, 2]', '7', 'null', '{"update": 5}', '{"update": null, "samples": 5}',
    '{"update": "five", "samples": 500}', '{"update": 5, "samples": 500, "lr": "low"}',
    json.dumps(metric_line(5)) * 2, '\x00\x00', '{"update": NaN, "samples": 500}'])
def test_a_broken_line_in_the_middle_is_skipped_counted_logged_and_shown(tmp_path, caplog, broken):
    lines = [json.dumps(metric_line(update)) for update in range(1, 11)]
    (tmp_path / 'metrics.jsonl').write_text('\n'.join([*lines[:4], broken, '', *lines[4:]]) + '\n')
    with caplog.at_level(logging.WARNING):
        run = read_run(tmp_path)
    assert run['update'].tolist() == list(range(1, 11))
    assert run.skipped == {'metrics.jsonl': 1}
    assert 'metrics.jsonl: 1 unreadable' in caplog.text
    assert '1 unreadable lines of metrics.jsonl' in build_page(run, b'')


def test_bytes_that_are_no_text_cost_only_their_line(folder):
    with open(folder / 'metrics.jsonl', 'ab') as file:
        file.write(b'\xff\xfe\x80\n' + json.dumps(metric_line(11)).encode() + b'\n')
    run = read_run(folder)
    assert run['update'][-1] == 11 and run.skipped == {'metrics.jsonl': 1}


def test_null_nan_and_missing_fields_are_read_as_not_recorded(tmp_path):
    short = metric_line(3)
    del short['loss']
    write_lines(tmp_path / 'metrics.jsonl', [metric_line(1, loss=None), metric_line(2, loss=math.nan), short])
    run = read_run(tmp_path)
    assert np.isnan(run['loss']).all() and run['lr'].tolist() == [0.1] * 3


def test_of_an_update_that_was_done_twice_the_later_line_wins(tmp_path):
    before = [metric_line(update, loss=1.0) for update in range(1, 11)]
    again = [metric_line(update, loss=2.0) for update in range(8, 13)]
    write_lines(tmp_path / 'metrics.jsonl', before + again)
    run = read_run(tmp_path)
    assert run['update'].tolist() == list(range(1, 13))
    assert run['loss'].tolist() == [1.0] * 7 + [2.0] * 5
    assert run.superseded == 3


def test_updates_that_were_undone_and_never_done_again_do_not_stand():
    assert standing_lines(np.array([1.0, 2, 3, 4, 5, 3, 4])).tolist() == [1, 1, 0, 0, 0, 1, 1]


def test_evaluations_of_undone_updates_do_not_stand(folder):
    write_lines(folder / 'events.jsonl', [
        {'update': 3, 'kind': 'evaluated', 'metrics': {'accuracy': 0.3}},
        {'update': 6, 'kind': 'evaluated', 'metrics': {'accuracy': 0.6}},
        {'update': 9, 'kind': 'evaluated', 'metrics': {'accuracy': 0.9}},
        {'update': 5, 'kind': 'failed_over'},
        {'update': 6, 'kind': 'evaluated', 'metrics': {'accuracy': 0.7, 'note': 'x', 'loss': math.nan}}])
    found = [(event['update'], event['metrics']) for event in read_run(folder).evaluations()]
    assert found == [(3, {'accuracy': 0.3}), (6, {'accuracy': 0.7})]


def test_an_event_is_placed_by_its_samples_or_else_by_its_update(folder):
    run = read_run(folder)
    assert run.samples_at({'samples': 123, 'update': 4}) == 123
    assert run.samples_at({'update': 4}) == 400
    assert run.samples_at({'update': 0}) == 0
    assert run.samples_at({'update': 99}) == 1000
    assert run.samples_at({'kind': 'started'}) is None


def test_a_missing_folder_and_missing_metrics_are_named_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'nowhere is not a folder.*--run-dir'):
        read_run(tmp_path / 'nowhere')
    with pytest.raises(FileNotFoundError, match=r'metrics\.jsonl does not exist.*--run-dir'):
        write_report(tmp_path)


@pytest.mark.parametrize(('content', 'count'), [('', 0), ('\n\n', 0), ('{"upd', 0), ('bad\nbad\n', 2)])
def test_metrics_without_one_complete_update_are_refused(tmp_path, content, count):
    (tmp_path / 'metrics.jsonl').write_text(content)
    with pytest.raises(ValueError, match=rf'metrics\.jsonl holds no complete update \({count} .*--run-dir'):
        read_run(tmp_path)


# -- series --------------------------------------------------------------------------------------------------


def test_downsampling_keeps_every_peak_and_dip_and_both_ends():
    lr = np.full(100_000, 0.1)
    lr[[0, 777, 50_123, 99_999]] = [0.05, 9.0, -3.0, 0.07]
    chosen = runseries.extremes(lr, bins=100)
    assert {0, 777, 50_123, 99_999} <= set(chosen.tolist())
    assert len(chosen) <= 202 and (np.diff(chosen) > 0).all()


@pytest.mark.parametrize('count', [1, 2, 199, 201, 202, 299, 1001])
def test_downsampling_works_for_any_length(count):
    chosen = runseries.extremes(np.sin(np.arange(count)), bins=100)
    assert chosen[0] == 0 and chosen[-1] == count - 1


def test_the_rolling_mean_is_cut_off_at_the_ends():
    assert runseries.rolling_mean(np.array([0.0, 3, 6, 9]), 3).tolist() == [1.5, 3, 6, 7.5]


def test_throughput_is_batch_over_step_time_and_sharp_at_a_resize(tmp_path):
    lines = [metric_line(update, global_batch=100, step_seconds=0.5) for update in range(1, 51)]
    lines += [metric_line(update, world_size=4, samples=5000 + 200 * (update - 50), global_batch=200,
                          step_seconds=0.4) for update in range(51, 101)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    samples, rates = runseries.throughput(read_run(tmp_path))
    assert set(rates[samples < 5000]) == {200.0} and set(rates[samples > 5000]) == {500.0}
    assert samples[0] == 0 and samples[-1] == 15_000
    assert (np.diff(samples) >= 0).all()


def test_pauses_and_unrecorded_times_do_not_bend_the_throughput(tmp_path):
    odd = {20: 60.0, 40: None, 41: 0.0, 42: -1.0}
    lines = [metric_line(update, step_seconds=odd.get(update, 0.5), time=START + update + 900 * (update > 30))
             for update in range(1, 61)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    assert set(runseries.throughput(read_run(tmp_path))[1]) == {200.0}


@pytest.mark.parametrize('count', [1, 999, 2500, 5001])
def test_throughput_is_right_for_any_length(tmp_path, count):
    write_lines(tmp_path / 'metrics.jsonl', [metric_line(update) for update in range(1, count + 1)])
    samples, rates = runseries.throughput(read_run(tmp_path))
    assert set(rates) == {200.0} and len(rates) <= runseries.POINTS + 2
    assert samples[-1] == 100 * count and (np.diff(samples) >= 0).all()


def test_epochs_begin_where_the_first_update_of_each_begins(tmp_path):
    lines = [metric_line(update, epoch=(update - 1) // 4) for update in range(1, 11)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    samples, epochs = runseries.epoch_starts(read_run(tmp_path))
    assert samples.tolist() == [0, 400, 800] and epochs.tolist() == [0, 1, 2]
    write_lines(tmp_path / 'metrics.jsonl', lines[:8])
    assert runseries.epoch_starts(read_run(tmp_path))[1].tolist() == [0, 1, 2]      # epoch 1 is complete


# -- the picture ---------------------------------------------------------------------------------------------


def texts(figure):
    """List (text, extent) of all that is written in a figure, ticks outside of the view not counted."""
    written = []

    def note(text, renderer):
        if text.get_visible() and text.get_text().strip():
            written.append((text, text.get_window_extent(renderer)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, 'draw', note)
        figure.canvas.draw()
    return written


def lane_labels(figure):
    return [text.get_text() for text, _ in texts(figure) if re.fullmatch(r'\d+→\d+', text.get_text())]


CASES = {
    'none': {'resizes': 0}, 'one': {'resizes': 1, 'evaluate': False}, 'three': {'resizes': 3, 'failures': 1},
    'sixty': {'resizes': 60, 'failures': 5, 'updates': 1500, 'epochs': 90, 'top': 16},
    'short': {'resizes': 1, 'updates': 20, 'epochs': 2}, 'decay': {'decay': 'steps', 'resizes': 6},
}


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
    """Give a function that gives the run and the figure of a case, each drawn once."""
    @functools.cache
    def draw(case):
        run = read_run(make_run(tmp_path_factory.mktemp(case), **CASES[case]))
        return run, runpicture.draw(run)
    return draw


@pytest.mark.parametrize('case', CASES)
def test_no_label_overlaps_another_or_leaves_the_picture(drawn, case):
    _, figure = drawn(case)
    found = [(text.get_text(), box) for text, box in texts(figure)]
    assert len(found) > 20
    for index, (word, box) in enumerate(found):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, word
        assert not [other for other, its in found[index + 1:] if box.overlaps(its)], word


@pytest.mark.parametrize('case', ['one', 'three', 'sixty'])
def test_every_resize_is_a_line_and_a_marker_and_failures_keep_their_labels(drawn, case):
    run, figure = drawn(case)
    assert sorted(line.get_xdata()[0] for line in figure.artists) == sorted(map(run.samples_at, run.resizes))
    assert len(figure.axes[0].lines) == len(run.resizes)
    labels = lane_labels(figure)
    failures = [runtext.size_text(event) for event in run.resizes if event['kind'] == 'failed_over']
    assert sum(label in failures for label in labels) >= len(failures)
    assert len(labels) == len(run.resizes) if case != 'sixty' else len(labels) < 60


def test_kinds_of_events_are_told_apart():
    resized = {'kind': 'resized', 'old_size': 2}
    assert runtext.mark_kind({**resized, 'new_size': 4}) == 'grow'
    assert runtext.mark_kind({**resized, 'new_size': 1}) == 'shrink'
    assert runtext.mark_kind({**resized, 'new_size': 2}) == 'swap'
    assert runtext.mark_kind({'kind': 'failed_over', 'old_size': 2, 'new_size': 1}) == 'failure'
    assert runtext.mark_kind({'kind': 'resumed'}) == 'resume'
    assert runtext.mark_kind({'kind': 'checkpointed'}) is None


@pytest.mark.parametrize(('case', 'scale'), [('none', 'linear'), ('decay', 'log')])
def test_the_lr_axis_is_logarithmic_only_for_decades(drawn, case, scale):
    assert drawn(case)[1].axes[2].get_yscale() == scale


def test_a_cosine_stays_linear_where_small_worlds_make_many_updates_near_its_end(tmp_path):
    lines = [metric_line(update, samples=1000 * update, lr=1 - update / 101) for update in range(1, 101)]
    lines += [metric_line(100 + update, samples=100_000 + update, lr=1e-5) for update in range(1, 500)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    assert runpicture.draw(read_run(tmp_path)).axes[2].get_yscale() == 'linear'


def test_the_base_schedule_is_drawn_only_where_it_differs_and_fits_in_the_panel(drawn):
    assert len(drawn('none')[1].axes[2].lines) == 1
    panel = drawn('decay')[1].axes[2]
    base = panel.lines[0].get_ydata()
    assert base[0] == pytest.approx(0.4) and base[-1] == pytest.approx(0.0004)
    assert panel.get_ylim()[0] < 0.0004 and panel.get_ylim()[1] > panel.lines[1].get_ydata().max()


def test_the_final_accuracy_is_written_in_the_panel_and_in_the_headline(drawn):
    run, figure = drawn('three')
    final = f'{100 * run.evaluations()[-1]["metrics"]["accuracy"]:.2f} %'
    assert final in [text.get_text() for text, _ in texts(figure)]
    assert f'final accuracy {final}' in runtext.headline(run)


def test_the_accuracy_is_shown_before_other_metrics():
    def chosen(*names):
        return runtext.main_metric([{'metrics': dict.fromkeys(names, 0.5)}])
    assert chosen('loss', 'accuracy', 'top5_acc') == 'accuracy'
    assert chosen('loss', 'mIoU') == 'mIoU'
    assert chosen('loss') == 'loss'
    assert chosen('loss', 'pixel_accuracy', 'mIoU') == 'mIoU'
    assert runtext.main_metric([]) is None


@pytest.mark.filterwarnings('error::RuntimeWarning')
@pytest.mark.parametrize('fields', [
    dict.fromkeys(['loss', 'lr', 'lr_scale', 'step_seconds', 'world_size', 'epoch', 'time']),
    {'global_batch': None, 'lr': 0.0, 'loss': 0.0}, {'lr_scale': 0.0, 'loss': math.inf}])
def test_a_field_that_was_not_recorded_leaves_the_rest_of_the_report(tmp_path, fields):
    write_lines(tmp_path / 'metrics.jsonl', [metric_line(update, **fields) for update in range(1, 11)])
    assert [path.exists() for path in write_report(tmp_path)] == [True, True]


@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_one_update_and_events_without_fields_are_enough(tmp_path):
    write_lines(tmp_path / 'metrics.jsonl', [metric_line(1)])
    write_lines(tmp_path / 'events.jsonl', [{'kind': kind} for kind in (
        'started', 'resized', 'failed_over', 'resumed', 'evaluated', 'something new')]
        + [{'kind': 'resized', 'update': 1, 'added': None}, {'no': 'kind'}, {'kind': 3}])
    page = write_report(tmp_path)[1].read_text()
    assert 'something new' in page and '2 unreadable lines of events.jsonl' in page


def test_dollars_in_names_are_no_formula_and_long_names_are_cut(tmp_path):
    folder = make_run(tmp_path / ('a $x^{ $ ' + 30 * 'long '), resizes=0)
    words = [text.get_text() for text, _ in texts(runpicture.draw(read_run(folder)))]
    assert any(word.startswith('a $x^{ $ long') and word.endswith('…') for word in words)


# -- the files -----------------------------------------------------------------------------------------------


def test_the_png_is_a_picture_of_the_promised_size_in_many_colours(tmp_path):
    png, _ = write_report(make_run(tmp_path / 'run'))
    pixels = imread(png)
    assert pixels.shape[:2] == (1760, 1600)
    assert len(np.unique((pixels[::4, ::4, :3] * 15).astype(int).reshape(-1, 3), axis=0)) > 50


def test_the_page_holds_the_picture_and_needs_no_other_file(tmp_path):
    png, page = write_report(make_run(tmp_path / 'run'))
    text = page.read_text(encoding='utf-8')
    embedded = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    assert base64.b64decode(embedded) == png.read_bytes()
    assert imread(io.BytesIO(base64.b64decode(embedded))).any()
    assert text.count('src=') == 1 and 'href' not in text and '<script' not in text


def test_the_page_lists_every_event_with_who_came_and_went(tmp_path):
    run = read_run(make_run(tmp_path / 'run', resizes=12, failures=3, updates=400))
    page = build_page(run, b'')
    rows = re.findall(r'<tr><td>.*</tr>', page)
    assert len(rows) == len(run.events)
    for event, row in zip(run.events, rows, strict=True):
        assert f'>{event["kind"]}</span>' in row
        for words in ([runtext.size_text(event)], event.get('added', []), event.get('removed', [])):
            assert all(word in row for word in words)
        if 'downtime_seconds' in event:
            assert f'{event["downtime_seconds"]:.2f} s' in row


def test_the_page_shows_fields_it_does_not_know(folder):
    event = {'kind': 'checkpointed', 'update': 4, 'path': 'step-4', 'bytes': [1, 2]}
    write_lines(folder / 'events.jsonl', [event])
    assert 'path step-4, bytes [1, 2]' in build_page(read_run(folder), b'')


def test_all_that_comes_from_the_run_is_escaped(tmp_path):
    folder = make_run(tmp_path / 'a <b> & "c"', resizes=0)
    evil = '<script>alert(1)</script>'
    write_lines(folder / 'events.jsonl', [
        {'kind': evil, 'update': 1, evil: evil}, {'kind': 'resized', 'added': [evil], 'removed': [evil]},
        {'kind': 'evaluated', 'update': 2, 'metrics': {evil: 0.5}},
        {'kind': 'evaluated', 'metrics': {'x': evil}}])
    page = write_report(folder)[1].read_text(encoding='utf-8')
    assert '<script' not in page and '<b>' not in page
    assert page.count('&lt;script&gt;') >= 7
    assert '<h1>a &lt;b&gt; &amp; &quot;c&quot;</h1>' in page


def test_the_summary_has_the_numbers_of_the_run(tmp_path):
    lines = [metric_line(update, epoch=(update - 1) // 5, loss=2.0 if update < 9 else None)
             for update in range(1, 11)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    write_lines(tmp_path / 'events.jsonl', [
        {'kind': 'started', 'time': START - 60},
        {'kind': 'resized', 'update': 3, 'downtime_seconds': 1.0, 'rolled_back_updates': 0},
        {'kind': 'evaluated', 'update': 5, 'metrics': {'accuracy': 0.9, 'loss': 0.3}},
        {'kind': 'failed_over', 'update': 6, 'downtime_seconds': 4.0, 'rolled_back_updates': 2},
        {'kind': 'resized', 'update': 7, 'downtime_seconds': 2.0, 'rolled_back_updates': 0},
        {'kind': 'evaluated', 'update': 10, 'metrics': {'accuracy': 0.85, 'loss': 0.4}}])
    rows = summary(read_run(tmp_path))
    assert rows['samples'] == '1,000' and rows['updates'] == '10'
    assert rows['epochs (the last may be incomplete)'] == '2'
    assert rows['time from first to last record'] == '1 min 05 s' and rows['time in updates'] == '5.0 s'
    assert rows['throughput, median'] == '200 samples/s'
    assert rows['resizes'] == '3, 1 of them by failure' and rows['updates rolled back'] == '2'
    assert rows['downtime of a resize'] == 'median 2.00 s, longest 4.00 s, in all 7.00 s'
    assert rows['evaluated accuracy'] == 'final 85.00 %, best 90.00 % (update 5)'
    assert rows['evaluated loss'] == 'final 0.4, best 0.3 (update 5)'
    assert rows['updates without a finite loss'] == '2'


def test_without_events_the_metrics_tell_what_was_rolled_back(folder):
    with open(folder / 'metrics.jsonl', 'a') as file:
        file.write(json.dumps(metric_line(9)) + '\n')
    run = read_run(folder)
    assert run.rolled_back == 2
    assert 'No events were recorded' in build_page(run, b'')


def test_an_older_report_is_replaced_and_nothing_else_is_left_behind(folder):
    (folder / 'report.png').write_bytes(b'old')
    assert [path.name for path in write_report(str(folder))] == ['report.png', 'report.html']
    assert sorted(path.name for path in folder.iterdir()) == ['metrics.jsonl', 'report.html', 'report.png']
    assert (folder / 'report.png').read_bytes().startswith(b'\x89PNG')


def test_a_write_that_fails_leaves_the_older_report(folder, monkeypatch):
    (folder / 'report.png').write_bytes(b'old')

    def fail(*_):
        raise OSError('disk full')
    monkeypatch.setattr('hvd_dynamic.report.os.replace', fail)
    monkeypatch.setattr(runpicture, 'render', lambda run: b'new')
    with pytest.raises(OSError, match='disk full'):
        write_report(folder)
    assert (folder / 'report.png').read_bytes() == b'old'
    assert sorted(path.name for path in folder.iterdir()) == ['metrics.jsonl', 'report.png']


def test_drawing_leaves_pyplot_alone(drawn):
    drawn('three')
    pyplot = sys.modules.get('matplotlib.pyplot')
    assert pyplot is None or not pyplot.get_fignums()


def test_noise_scale_gets_a_panel_and_a_row_only_where_it_was_measured(tmp_path):
    lines = [metric_line(update, global_batch=64) for update in range(1, 41)]
    write_lines(tmp_path / 'metrics.jsonl', lines)
    run = read_run(tmp_path)
    without = len(runpicture.draw(run).axes)
    assert 'gradient noise scale at the end' not in summary(run)
    write_lines(tmp_path / 'metrics.jsonl',
                [{**line, 'noise_scale': 192.0 if line['update'] > 3 else None} for line in lines])
    run = read_run(tmp_path)
    assert len(runpicture.draw(run).axes) == without + 1
    assert summary(run)['gradient noise scale at the end'] == (
        '192 samples; at a global batch of 64 a sample is worth 75 % of one in a small batch')
