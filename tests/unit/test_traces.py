"""Traces, the host discovery that follows one, and the command line around them."""
import json
import re

import pytest

from hvd_dynamic import cli, traces
from hvd_dynamic.discovery import hosts_for, parse_hosts, progress
from hvd_dynamic.traces import Trace


def test_size_changes_at_its_progress_and_not_before():
    trace = Trace('epochs', [(0, 2), (0.5, 4), (2, 1)])
    sizes = {samples: trace.size_at(samples, samples_per_epoch=100) for samples in (0, 49, 50, 199, 200, 9999)}
    assert sizes == {0: 2, 49: 2, 50: 4, 199: 4, 200: 1, 9999: 1}


@pytest.mark.parametrize('name', traces.READY)
def test_ready_trace_is_a_trace_within_its_limits_and_survives_its_file(name, tmp_path):
    trace = traces.ready(name, epochs=20, smallest=2, largest=16, seed=5)
    assert set(trace.sizes) <= set(range(2, 17)) and len(set(trace.sizes)) > 1
    assert trace.points[-1][0] < 20
    assert all(a != b for a, b in zip(trace.sizes, trace.sizes[1:]))
    path = tmp_path / 'trace.csv'
    path.write_text(trace.to_csv())
    assert traces.read(path) == trace


def test_chance_is_the_seeds():
    for name in ('random-walk', 'spot'):
        first, again, other = (traces.ready(name, 30, seed=seed) for seed in (1, 1, 2))
        assert first == again and first != other


def test_grow_and_shrink_are_what_their_names_say():
    assert traces.ready('grow', 30).sizes == (8, 128)
    assert traces.ready('shrink', 30).sizes == (128, 8)
    assert traces.ready('grow-shrink', 30).sizes == (8, 128, 8)
    assert traces.ready('sawtooth', 30).sizes == (8, 16, 32, 64, 128) * 3


@pytest.mark.parametrize('text, message', [
    ('', "the first line must be 'epochs,size' or 'samples,size'"),
    ('epoch,size\n0,8\n', "the first line must be 'epochs,size' or 'samples,size'"),
    ('epochs,size\n', r'points must have at least one point'),
    ('epochs,size\n0,8\n10\n', r"line 3: needs a number and a whole number such as 10,128, got '10'"),
    ('epochs,size\n0,8\n10,many\n', r"line 3: needs .* got '10,many'"),
    ('epochs,size\n1,8\n', 'the first point must be at 0 epochs, where training starts, got 1'),
    ('epochs,size\n0,8\n3,4\n3,2\n', 'progress must ascend from point to point, got 3 after 3 epochs'),
    ('samples,size\n0,0\n', 'size must be a positive integer, the number of workers, got 0 at 0 samples'),
    ('samples,size\n0,1\nnan,2\n', 'progress must be a number of samples of at least 0, got nan'),
])
def test_bad_file_is_told_with_its_name(tmp_path, text, message):
    path = tmp_path / 'bad.csv'
    path.write_text(text)
    with pytest.raises(ValueError, match=f'bad.csv.*{message}'):
        traces.read(path)


def write_run(folder, sizes, batch=4):
    folder.mkdir()
    lines = [{'update': i + 1, 'samples': sum(sizes[:i + 1]) * batch, 'world_size': size, 'global_batch': size * batch}
             for i, size in enumerate(sizes)]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    (folder / 'events.jsonl').write_text(json.dumps({'kind': 'started', 'update': 0, 'samples_per_epoch': 40}) + '\n')


def test_trace_of_a_run_is_what_happened_to_it(tmp_path):
    write_run(tmp_path / 'run', [2, 2, 5, 5, 1])
    assert traces.of_run(tmp_path / 'run') == Trace('samples', [(0, 2), (16, 5), (56, 1)])


def test_discovery_reads_where_the_training_is(tmp_path):
    run, trace = tmp_path / 'run', Trace('epochs', [(0, 2), (0.5, 5), (1.4, 1)])
    hosts = parse_hosts('a:3,b:2')
    assert progress(run) == (0, None) and hosts_for(trace, run, hosts) == ['a:2']
    write_run(run, [2, 2])
    assert progress(run) == (16, 40) and hosts_for(trace, run, hosts) == ['a:2']
    with open(run / 'metrics.jsonl', 'a') as file:
        file.write('{"update": 3, "samples": 24}\n{"update": 4, "sam')          # its writer is at it
    assert hosts_for(trace, run, hosts) == ['a:3', 'b:2']
    with open(run / 'metrics.jsonl', 'a') as file:
        file.write('ples": 56}\n')
    assert hosts_for(trace, run, hosts) == ['a:1']


@pytest.mark.parametrize('text', ['', 'a', 'a:0', 'a:x', 'a:1,a:2', ':3'])
def test_bad_hosts_are_told(text):
    with pytest.raises(ValueError, match='hosts must be host:slots separated by commas'):
        parse_hosts(text)


@pytest.mark.parametrize('arguments, message', [
    (['trace', 'spott', '--epochs', '3'], "hvd-dynamic trace: name must be one of .* got 'spott' \\(did you mean 'spot'"),
    (['trace', 'grow', '--epochs', '0'], 'hvd-dynamic trace: epochs must be a number above 0'),
    (['trace', 'grow', '--epochs', '3', '--smallest', '9', '--largest', '9'], '1 <= smallest < largest, got 9 and 9'),
    (['discover', '--trace', '{trace}', '--run-dir', 'x', '--hosts', 'a:3'],
     'hosts have 3 slots, but the trace needs 128 workers'),
    (['discover', '--trace', '{trace}.no', '--run-dir', 'x', '--hosts', 'a:3'], 'No such file'),
    (['simulate', '{trace}'], 'a script is needed after the trace'),
    (['simulate', '{trace}', '-m'], '-m needs a module after the trace'),
    (['simulate', '{trace}', 'no-such.py'], "there is no script 'no-such.py'"),
])
def test_bad_command_line_gives_one_line_and_status_2(tmp_path, capsys, arguments, message):
    trace = tmp_path / 'trace.csv'
    trace.write_text(traces.ready('grow', 3).to_csv())
    assert cli.main([argument.format(trace=trace) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count('\n') == 1
    assert re.search(message, said)
