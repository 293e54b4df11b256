"""What a VirtualWorld is to do as real workers would: follow a trace, and keep their running statistics."""
import mxnet as mx
import numpy as np
import pytest
from helpers import Job, read_lines, small_net
from mxnet import gluon

import hvd_dynamic as dynamic
from hvd_dynamic import cli
from hvd_dynamic.traces import Trace


def test_world_follows_a_trace_at_the_first_commit_at_or_after_its_progress(tmp_path):
    trace = Trace('epochs', [(0, 2), (0.5, 3), (1.25, 1)])
    job = Job(world=dynamic.VirtualWorld(trace=trace), batch=4, samples=40, run_log=dynamic.RunLog(tmp_path))
    job.train(epochs=2)
    sizes = [(line['samples'] - line['global_batch'], line['world_size']) for line in read_lines(tmp_path / 'metrics.jsonl')]
    assert sizes == [(0, 2), (8, 2), (16, 2), (24, 3), (36, 3), (40, 3), (52, 1), (56, 1), (60, 1), (64, 1), (68, 1),
                     (72, 1), (76, 1)]
    with pytest.raises(RuntimeError, match='follows a trace, which decides its size'):
        job.world.resize(2)


def network(deferred, **hybridize):
    mx.random.seed(1)
    if not deferred:
        return small_net(batchnorm=True)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    net.initialize()
    if hybridize:
        net.hybridize(**hybridize)
    return net


@pytest.mark.parametrize('net', [lambda: network(False), lambda: network(True),
                                 lambda: network(True, static_alloc=True, static_shape=True)],
                         ids=['initialised', 'deferred', 'static'])
def test_running_statistics_are_the_mean_of_what_workers_have(net):
    """With a learning rate of 0 the weights stay, so the statistics of each worker can be worked out by hand."""
    job = Job(world=4, batch=3, samples=66, net=net(), base=0.0)
    job.train(epochs=1)
    sampler = dynamic.ElasticSampler(66, batch_size=3, seed=3)
    sampler.set_world(4, range(4))
    expected = [[np.zeros(5), np.ones(5)] for _ in range(4)]
    while (cut := sampler.next_update()) is not None:       # the last one has 6 samples, 2 + 2 + 1 + 1
        for rank, (mean, variance) in enumerate(expected):
            x = job.net[0](mx.nd.array(job.x[sampler.indices(cut, rank)])).asnumpy()
            expected[rank] = 0.9 * mean + 0.1 * x.mean(0), 0.9 * variance + 0.1 * x.var(0)
        sampler.advance()
    statistics = [p.data().asnumpy() for p in job.net.collect_params('.*running.*').values()]
    for got, want in zip(statistics, np.mean(expected, axis=0)):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


SCRIPT = '''
import sys
import numpy as np
from mxnet import autograd, gluon, nd
import hvd_dynamic as dynamic
from beside import SAMPLES
dynamic.init()
net = gluon.nn.Dense(1, in_units=3)
net.initialize()
sampler = dynamic.ElasticSampler(SAMPLES, batch_size=int(sys.argv[2]))
schedule = dynamic.DynamicSchedule(0.01, 8)
trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', {}, schedule=schedule)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=dynamic.RunLog(sys.argv[1]), epoch=0)

@dynamic.run
def train(state):
    for state.epoch in range(state.epoch, 2):
        for batch in sampler:
            with autograd.record():
                loss = net(nd.ones((len(batch), 3))) ** 2
            loss.backward()
            trainer.step(len(batch))
            state.commit()

if __name__ == '__main__':
    train(state)
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    from hvd_dynamic import elastic
    monkeypatch.setattr(elastic, '_world', None)
    monkeypatch.setattr('sys.argv', ['pytest'])
    monkeypatch.setattr('sys.path', ['', *__import__('sys').path])
    (tmp_path / 'beside.py').write_text('SAMPLES = 40')
    (tmp_path / 'train.py').write_text(SCRIPT)
    (tmp_path / 'trace.csv').write_text('epochs,size\n0,1\n1,4\n9,2\n')
    return tmp_path


def test_simulate_runs_a_script_with_its_arguments_and_says_what_of_the_trace_was_not_reached(script, capsys):
    assert cli.main(['simulate', str(script / 'trace.csv'), str(script / 'train.py'), str(script / 'run'), '4']) == 0
    lines = read_lines(script / 'run' / 'metrics.jsonl')
    assert [line['world_size'] for line in lines] == [1] * 10 + [4] * 3
    said = capsys.readouterr().err
    assert 'training ended at 2 epochs, before the 1 later change of the trace (the next one at 9)' in said


def test_simulate_takes_a_run_folder_for_what_happened_to_that_run(script):
    cli.main(['simulate', str(script / 'trace.csv'), str(script / 'train.py'), str(script / 'run'), '4'])
    assert cli.main(['simulate', str(script / 'run'), str(script / 'train.py'), str(script / 'again'), '4']) == 0
    first, again = ([{k: v for k, v in line.items() if 'time' not in k and 'seconds' not in k}
                     for line in read_lines(script / name / 'metrics.jsonl')] for name in ('run', 'again'))
    assert first == again


def test_simulate_tells_world_sizes_that_do_not_fit_in_one_line(script, capsys):
    (script / 'trace.csv').write_text('epochs,size\n0,41\n')
    assert cli.main(['simulate', str(script / 'trace.csv'), str(script / 'train.py'), str(script / 'run'), '4']) == 2
    assert 'hvd-dynamic simulate: ' in capsys.readouterr().err


def test_simulate_of_a_script_that_trains_nothing_is_told(script, capsys):
    (script / 'train.py').write_text('print("nothing")')
    assert cli.main(['simulate', str(script / 'trace.csv'), str(script / 'train.py')]) == 2
    assert 'has trained nothing with hvd_dynamic' in capsys.readouterr().err
