"""The recipes' command line, learning rates, networks, evaluation, saved parameters and log."""

import io
import logging
import subprocess
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from gluon_examples.classification import arguments, networks
from gluon_examples.classification.demo import Lines
from gluon_examples.classification.losses import SmoothedCrossEntropy
from gluon_examples.common import arguments as common
from gluon_examples.common import logging_setup
from gluon_examples.common.elastic_job import ElasticJob
from gluon_examples.common.errors import RecipeError, told_in_one_line
from gluon_examples.common.evaluation import ClassificationEvaluator, SharedBatches
from gluon_examples.common.progress import Progress
from gluon_examples.common.saving import CheckpointTimes, ParameterFiles
from gluon_examples.common.schedules import epoch_schedule
from hvd_dynamic import policies

FOLDER = ['--dataset', 'folder', '--data-dir', 'pictures']


def refusal(capsys, *argv):
    """The last line of what the parser says when it refuses these arguments."""
    with pytest.raises(SystemExit) as exit:
        arguments.parse([str(arg) for arg in argv])
    assert exit.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


# -- values ----------------------------------------------------------------------------------------------------

BAD_VALUES = [
    ('--batch-size', '0', "must be a whole number of at least 1, got '0'; for example 32"),
    ('--batch-size', '3.5', "must be a whole number of at least 1, got '3.5'"),
    ('--num-epochs', '-1', "must be a whole number of at least 1, got '-1'"),
    ('--num-workers', '-2', "must be a whole number from 0 to 256, got '-2'"),
    ('-j', '100000', "must be a whole number from 0 to 256, got '100000'"),
    ('--lr', '0', "must be a number above 0, got '0'; for example 0.1"),
    ('--lr', 'nan', "must be a number above 0, got 'nan'"),
    ('--lr', 'inf', "must be a number above 0, got 'inf'"),
    ('--lr-decay', '0', "must be a number above 0, got '0'"),
    ('--lr-decay-epoch', '60,30', "must be epochs in ascending order, got '60,30'; for example 30,60"),
    ('--lr-decay-epoch', '30,', "must be epochs in ascending order, got '30,'"),
    ('--warmup-epochs', '-1', "must be a number of at least 0, got '-1'"),
    ('--warmup-lr', '-0.1', "must be a number of at least 0, got '-0.1'"),
    ('--momentum', '1', "must be a number from 0 up to, but not including, 1, got '1'; for example 0.9"),
    ('--wd', '-1', "must be a number of at least 0, got '-1'"),
    ('--label-smoothing', '1', "must be a number from 0 up to, but not including, 1, got '1'"),
    ('--seed', '-1', "must be a whole number from 0 to 2147483647, got '-1'"),
    ('--transition-updates', '0', "must be a whole number of at least 1, got '0'; for example 64"),
    ('--reference-batch', '0', "must be a whole number of at least 1, got '0'; for example 256"),
    ('--max-local-batch', '-8', "must be a whole number of at least 1, got '-8'"),
    ('--save-frequency', '-1', "must be a whole number from 0 to 2147483647, got '-1'"),
    ('--log-interval', '0', "must be a whole number of at least 1, got '0'"),
    ('--crop-ratio', '1.5', "must be a number above 0, at most 1, got '1.5'; for example 0.875"),
    ('--classes', '0', "must be a whole number of at least 1, got '0'"),
    ('--policy', 'smoth', "invalid choice: 'smoth' (choose from"),
    ('--optimizer', 'sdg', "invalid choice: 'sdg'"),
    (
        '--dataset',
        'digit',
        "got 'digit'; did you mean digits? choose one of digits, idx, cifar10, folder, rec",
    ),
]


@pytest.mark.parametrize(('flag', 'value', 'message'), BAD_VALUES)
def test_value_out_of_range_is_refused_with_argument_value_and_remedy(flag, value, message, capsys):
    said = refusal(capsys, f'{flag}={value}' if flag.startswith('--') else f'{flag}{value}')
    assert said.startswith('train: error: argument ') and flag in said and message in said


BAD_COMBINATIONS = [
    (
        ['--lr-mode', 'cosine', '--lr-decay', '0.1'],
        'argument --lr-decay: has no effect with --lr-mode cosine, only with step',
    ),
    (['--lr-decay-epoch', '10'], 'argument --lr-decay-epoch: has no effect with --lr-mode cosine'),
    (
        ['--warmup-epochs', '0', '--warmup-lr', '0.01'],
        'argument --warmup-lr: has no effect without --warmup-epochs',
    ),
    (
        ['--optimizer', 'adam', '--momentum', '0.8'],
        'argument --momentum: has no effect with --optimizer adam',
    ),
    (
        ['--policy', 'linear', '--transition-updates', '8'],
        'argument --transition-updates: has no effect with --policy linear',
    ),
    (['--policy', 'linear', '--ramp-at-start'], 'argument --ramp-at-start: has no effect with --policy linear'),
    (['--policy', 'compensated', '--transition-updates', '8'], 'has no effect with --policy compensated'),
    (
        ['--policy', 'fixed-global-batch', '--scaling', 'sqrt'],
        'argument --scaling: has no effect with --policy fixed',
    ),
    (
        ['--policy', 'fixed-global-batch', '--batch-size', '8'],
        'argument --batch-size: has no effect with --policy fixed-global-batch, '
        'under which the workers share --reference-batch',
    ),
    (
        ['--max-local-batch', '8'],
        'argument --max-local-batch: has no effect with --policy smooth, only with fixed-global-batch',
    ),
    (['--audit-samples'], 'argument --audit-samples: has no effect without --run-dir'),
    (['--noise-scale'], 'argument --noise-scale: has no effect without --run-dir, the folder it writes to'),
    (
        ['--algorithm', 'adaptive', '--noise-scale', '--run-dir', 'x'],
        'argument --noise-scale: cannot be measured with --algorithm adaptive',
    ),
    (['--no-wd', '--wd', '0'], 'argument --no-wd: has no effect with --wd 0'),
    (
        ['--num-epochs', '5', '--warmup-epochs', '5'],
        'argument --warmup-epochs: must be less than --num-epochs (5), got 5',
    ),
    (
        ['--lr-mode', 'step', '--lr-decay-epoch', '10,30'],
        'argument --lr-decay-epoch: must be less than --num-epochs (30), got 30',
    ),
    (
        ['--save-prefix', 'a/b'],
        "argument --save-prefix: must be the beginning of a file name without a slash, got 'a/b'",
    ),
    (['--data-dir', 'x'], 'argument --data-dir: has no effect with --dataset digits'),
    (['--dataset', 'idx'], 'argument --data-dir: needed with --dataset idx'),
    (
        ['--input-size', '64'],
        'argument --input-size: has no effect with --dataset digits, only with folder and rec',
    ),
    (['--crop-ratio', '0.9'], 'argument --crop-ratio: has no effect with --dataset digits'),
    ([*FOLDER, '--classes', '9'], 'argument --classes: has no effect with --dataset folder, only with rec'),
]


@pytest.mark.parametrize(('argv', 'message'), BAD_COMBINATIONS)
def test_flags_that_make_no_sense_together_are_refused(argv, message, capsys):
    assert message in refusal(capsys, *argv)


def test_float16_is_refused_where_there_is_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(mx.context, 'num_gpus', lambda: 0)
    assert 'float16 needs a GPU' in refusal(capsys, '--dtype', 'float16')


# -- checkpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (['--resume', 'x'], "argument --resume: must be never, auto or a checkpoint file, got 'x'; for example runs/"),
        (['--resume', 'auto'], 'argument --resume: auto needs --checkpoint-dir or --run-dir'),
        (['--checkpoint-every', '0'], "must be a whole number of at least 1, got '0'; for example 500"),
        (['--checkpoint-every', '5'], 'argument --checkpoint-every: has no effect without --checkpoint-dir or --run-dir'),
        (['--keep-checkpoints', '5'], 'argument --keep-checkpoints: has no effect without --checkpoint-dir'),
        (['--resume-epoch', '10'], 'argument --resume-epoch: not known here; --resume FILE takes up weights, optimizer'),
        (['--resume-params', 'x.params'], 'argument --resume-params: not known here; --resume FILE'),
        (['--resume-states', 'x.states'], 'argument --resume-states: not known here; --resume FILE'),
    ],
)
def test_resume_flags_that_cannot_work_are_refused(argv, message, capsys):
    assert message in refusal(capsys, *argv)


def test_checkpoints_are_in_the_run_folder_unless_another_is_given():
    assert arguments.parse([]).checkpoint_dir is None and arguments.parse([]).resume == 'never'
    args = arguments.parse(['--run-dir', 'runs/a', '--resume', 'auto'])
    assert (args.checkpoint_dir, args.keep_checkpoints, args.checkpoint_every, args.resume) == (
        'runs/a/checkpoints',
        3,
        None,
        'auto',
    )
    args = arguments.parse(['--run-dir', 'runs/a', '--checkpoint-dir', 'b', '--resume', 'b/checkpoint-5.hvd'])
    assert (args.checkpoint_dir, args.resume) == ('b', 'b/checkpoint-5.hvd')


def test_help_says_what_takes_the_place_of_gluoncvs_resume_flags(capsys):
    with pytest.raises(SystemExit):
        arguments.parse(['--help'])
    text = ' '.join(capsys.readouterr().out.split())
    assert "Takes the place of GluonCV's --resume-epoch, --resume-params and --resume-states" in text


@pytest.mark.parametrize(
    ('folder', 'every', 'updates', 'expected'),
    [(None, None, 4, 'none'), ('f', None, 4, 'epoch'), ('f', 2, 4, 'update'), ('f', 3, 4, 'none')],
)
def test_checkpoints_are_written_when_they_are_due(folder, every, updates, expected):
    saved = []
    trainer = SimpleNamespace(in_update=False)
    state = SimpleNamespace(updates=updates, trainer=trainer, save_checkpoint=lambda: saved.append(1))
    times = CheckpointTimes(folder, every)
    times.after_update(state)
    assert len(saved) == (expected == 'update')
    times.after_epoch(state)
    assert len(saved) == (expected != 'none')
    trainer.in_update = True
    times.after_update(state)
    assert len(saved) == (expected != 'none')


# -- defaults --------------------------------------------------------------------------------------------------


def test_defaults_follow_the_data_set():
    digits, folder = arguments.parse([]), arguments.parse(FOLDER)
    assert (digits.network, digits.reference_batch, digits.lr_mode) == ('digits_cnn', 64, 'cosine')
    assert (folder.network, folder.reference_batch, folder.num_workers) == ('resnet50_v1b', 256, 4)
    assert digits.save_prefix == 'digits-digits_cnn' and digits.save_dir == 'params'
    assert arguments.parse(['--run-dir', 'runs/a']).save_dir == 'runs/a'


def test_value_that_is_given_wins_over_the_default():
    args = arguments.parse(
        ['--lr', '0.3', '--batch-size', '7', '--num-epochs', '3', '-j', '1', '--network', 'vgg11']
    )
    assert (args.lr, args.batch_size, args.num_epochs, args.num_workers, args.network) == (
        0.3,
        7,
        3,
        1,
        'vgg11',
    )


def test_steps_are_at_half_and_three_quarters_unless_given():
    cifar = ['--dataset', 'cifar10', '--data-dir', 'x']
    assert arguments.parse(cifar).lr_decay_epoch == (100, 150)
    assert arguments.parse([*cifar, '--lr-decay-epoch', '80,120.5']).lr_decay_epoch == (80, 120.5)


def test_label_smoothing_without_a_number_is_one_tenth():
    assert arguments.parse(['--label-smoothing']).label_smoothing == 0.1
    assert arguments.parse(['--label-smoothing', '0.2']).label_smoothing == 0.2
    assert arguments.parse([]).label_smoothing == 0


def test_adam_has_its_own_learning_rate_and_no_momentum():
    args = arguments.parse(['--optimizer', 'adam'])
    assert args.lr == 0.001 and common.optimizer_options(args) == {'wd': 1e-4}
    assert common.optimizer_options(arguments.parse([])) == {'wd': 1e-4, 'momentum': 0.9}


def test_help_shows_the_defaults_of_every_data_set(capsys):
    with pytest.raises(SystemExit):
        arguments.parse(['--help'])
    assert 'cifar_resnet20_v1' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('argv', 'expected'),
    [
        ([], policies.Smooth()),
        (['--transition-updates', '16'], policies.Smooth(updates=16)),
        (['--ramp-at-start'], policies.Smooth(ramp_at_start=True)),
        (['--policy', 'linear', '--scaling', 'sqrt'], policies.Linear(scaling='sqrt')),
        (['--policy', 'linear-uncorrected'], policies.LinearUncorrected()),
        (['--policy', 'compensated'], policies.Compensated()),
        (
            ['--policy', 'smooth-compensated', '--transition-updates', '4'],
            policies.SmoothCompensated(updates=4),
        ),
        (['--policy', 'fixed-global-batch'], policies.FixedGlobalBatch()),
        (
            ['--policy', 'fixed-global-batch', '--max-local-batch', '8'],
            policies.FixedGlobalBatch(max_local_batch=8),
        ),
    ],
)
def test_policy_is_the_one_asked_for(argv, expected):
    assert common.policy(arguments.parse(argv)) == expected


# -- learning rate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('mode', 'middle'), [('poly', 0.25), ('cosine', 0.5)])
def test_learning_rate_warms_up_then_falls_to_zero(mode, middle):
    lr = epoch_schedule(mode, 1.0, 12, warmup_epochs=2, warmup_lr=0.1)
    assert [lr(0), lr(1), lr(2), lr(7), lr(12)] == pytest.approx([0.1, 0.55, 1, middle, 0])


def test_learning_rate_stays_at_its_end_after_the_last_epoch():
    assert epoch_schedule('cosine', 1.0, 10)(10.01) == epoch_schedule('poly', 1.0, 10)(99) == 0


def test_unknown_course_of_the_learning_rate_is_refused():
    with pytest.raises(ValueError, match="mode 'linear' is unknown; use one of step, poly, cosine"):
        epoch_schedule('linear', 1.0, 10)


# -- networks --------------------------------------------------------------------------------------------------


def test_small_network_learns_its_shapes_from_the_first_batch():
    net = networks.create('digits_cnn', 10, (1, 8, 8))
    net.initialize()
    net.hybridize()
    assert any(0 in param.shape for param in net.collect_params().values())
    assert net(mx.nd.zeros((2, 1, 8, 8))).shape == (2, 10)
    assert 'running_mean' in ' '.join(net.collect_params())


def test_gluoncv_classifier_has_as_many_classes_as_the_data():
    net = networks.create('mobilenet0.25', 7, (3, 32, 32))
    net.initialize()
    assert net(mx.nd.zeros((1, 3, 32, 32))).shape == (1, 7)


def test_unknown_network_is_answered_with_close_names():
    with pytest.raises(
        RecipeError, match='resnet50v1b: no such .*did you mean resnet50_v1b.*--list-networks prints'
    ):
        networks.create('resnet50v1b', 10, (3, 224, 224))
    with pytest.raises(RecipeError, match='digit_cnn: .*did you mean digits_cnn'):
        networks.create('digit_cnn', 10, (1, 8, 8))


@pytest.mark.parametrize(
    'name',
    [
        'ssd_512_resnet50_v1_voc',
        'fcn_resnet50_voc',
        'resnet50_v1b_custom',
        'resnet50_v1_int8',
        'hrnet_w18_small_v1_s',
    ],
)
def test_network_for_another_task_is_refused_before_it_is_made(name):
    # Some of them fetch weights as soon as they are made.
    with pytest.raises(RecipeError, match='no such classification network'):
        networks.create(name, 10, (3, 224, 224))


def test_network_that_cannot_take_the_images_is_refused():
    with pytest.raises(RecipeError, match='vgg11: cannot take images of 3x8x8 .*kernel size'):
        networks.create('vgg11', 10, (3, 8, 8))
    with pytest.raises(RecipeError, match='inceptionv3: cannot take images of 3x224x224.*--input-size'):
        networks.create('inceptionv3', 10, (3, 224, 224))


@pytest.mark.parametrize('name', ['hrnet_w18_small_v1_c', 'nasnet_4_1056', 'cifar_resnet20_v2'])
def test_networks_with_other_ways_to_say_classes_are_made_right(name):
    assert networks.create(name, 7, (3, 224, 224)) is not None


def test_list_of_networks_is_printed(capsys):
    with pytest.raises(SystemExit) as exit:
        arguments.parse(['--list-networks'])
    names = capsys.readouterr().out.split()
    assert exit.value.code == 0 and {
        'digits_cnn',
        'resnet50_v1b',
        'cifar_resnet20_v1',
        'mobilenetv3_small',
    } <= set(names)
    assert names == sorted(names) and not any('ssd' in name or 'int8' in name for name in names)


# -- loss and evaluation ---------------------------------------------------------------------------------------


def test_loss_without_smoothing_is_cross_entropy_and_with_it_the_mean_over_smoothed_labels():
    scores, label = mx.nd.array(np.random.RandomState(0).randn(4, 5)), mx.nd.array([0, 4, 2, 2])
    plain = gluon.loss.SoftmaxCrossEntropyLoss()(scores, label).asnumpy()
    assert SmoothedCrossEntropy()(scores, label).asnumpy() == pytest.approx(plain, abs=1e-6)
    smooth = mx.nd.one_hot(label, 5, on_value=0.9 + 0.1 / 5, off_value=0.1 / 5)
    expected = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(scores, smooth).asnumpy()
    assert SmoothedCrossEntropy(0.1)(scores, label).asnumpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(('length', 'size'), [(297, 1), (297, 4), (10, 3), (2, 5)])
def test_workers_share_the_test_images_without_gap_or_overlap(length, size):
    seen, batches = [], SharedBatches(length, 4)
    for batches.rank in range(size):
        batches.size = size
        own = list(batches)
        assert len(own) == len(batches) and all(1 <= len(batch) <= 4 for batch in own)
        seen += [index for batch in own for index in batch]
    assert seen == list(range(length))


class OneOf:
    """The world as one of several workers sees it; remembers what is to be added up."""

    def __init__(self, rank, size):
        self.shard, self.sent = (rank, size), None

    def allreduce_sum(self, array):
        self.sent = array
        return array


def test_evaluation_is_the_same_at_any_world_size():
    random = np.random.RandomState(1)
    images, labels = random.randn(23, 6).astype('float32'), random.randint(0, 3, 23).astype('int32')
    net = gluon.nn.Dense(3)
    net.initialize()
    scores = net(mx.nd.array(images))
    right = (scores.asnumpy().argmax(1) == labels).mean()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, mx.nd.array(labels)).asnumpy().mean(dtype='float64')
    evaluate = ClassificationEvaluator(gluon.data.ArrayDataset(images, labels), 4, mx.cpu())
    for size in (1, 2, 5, 30):
        total = 0
        for rank in range(size):
            world = OneOf(rank, size)
            if size <= 23:
                evaluate(net, world)
            else:
                with np.errstate(invalid='ignore'):
                    evaluate(net, world)  # some workers have no images
            total = total + world.sent
        assert total[0] == 23 and total[1] / 23 == right and total[2] / 23 == pytest.approx(loss, rel=1e-6)


# -- saved parameters ------------------------------------------------------------------------------------------


def test_parameter_files_are_the_best_the_last_and_one_every_few_epochs(tmp_path):
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    files = ParameterFiles(tmp_path / 'new' / 'folder', 'a', frequency=2)
    for epoch in range(4):
        files.after_epoch(net, epoch, is_best=epoch == 1)
    files.save(net, 'last')
    names = sorted(path.name for path in (tmp_path / 'new' / 'folder').iterdir())
    assert names == ['a-0002.params', 'a-0004.params', 'a-best.params', 'a-last.params']
    again = gluon.nn.Dense(2, in_units=3)
    again.load_parameters(str(files.path('last')))
    assert (again.weight.data() == net.weight.data()).asnumpy().all()


def test_save_that_fails_leaves_the_older_file_and_no_debris(tmp_path):
    files = ParameterFiles(tmp_path, 'a')
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    before = files.save(net, 'last').read_bytes()

    class Broken:
        def save_parameters(self, name):
            with open(name, 'w') as file:
                file.write('half')
            raise OSError('disk full')

    with pytest.raises(OSError, match='disk full'):
        files.save(Broken(), 'last')
    assert [path.name for path in tmp_path.iterdir()] == ['a-last.params']
    assert files.path('last').read_bytes() == before


def test_folder_for_parameters_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RecipeError, match='--save-dir .*file/sub: cannot make this folder'):
        ParameterFiles(tmp_path / 'file' / 'sub', 'a')
    with pytest.raises(RecipeError, match='--save-prefix aaa.*: no file can be called so .File name too long.'):
        ParameterFiles(tmp_path, 'a' * 250)


@pytest.mark.parametrize(('rank', 'last', 'warnings'), [(0, 1.0, 0), (0, np.nan, 1), (0, np.inf, 1), (1, np.nan, 0)])
def test_first_worker_says_once_an_epoch_that_the_loss_is_no_number(rank, last, warnings, caplog):
    state = SimpleNamespace(epoch=4, updates=7, world=SimpleNamespace(rank=rank, size=2),
                            sampler=SimpleNamespace(length=8, samples_left=8), trainer=SimpleNamespace(learning_rate=0.1))
    progress = Progress(9, 50)
    for _ in range(2):
        with progress.epoch(state) as step_done:
            for loss in (np.nan, last):
                step_done(mx.nd.array([loss, 1.0]))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ['epoch 5/9: the training loss is no finite number any more; begin anew with a lower --lr'] * 2 * warnings
    with progress.epoch(state):     # a resumed training may find its epoch complete
        pass


# -- messages --------------------------------------------------------------------------------------------------


def test_fault_of_the_user_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as exit, told_in_one_line('train'):
        raise RecipeError('this is wrong; do that')
    assert exit.value.code == 2 and capsys.readouterr().err == 'train: error: this is wrong; do that\n'
    with pytest.raises(ZeroDivisionError), told_in_one_line('train'):
        raise ZeroDivisionError


def test_file_that_cannot_be_used_is_told_in_one_line_but_not_what_befalls_a_socket(capsys, tmp_path):
    with pytest.raises(SystemExit) as exit, told_in_one_line('train'):
        open(tmp_path)
    assert exit.value.code == 2 and capsys.readouterr().err == f'train: error: {tmp_path}: Is a directory\n'
    with pytest.raises(ConnectionResetError), told_in_one_line('train'):
        raise ConnectionResetError(104, 'Connection reset by peer')


def test_only_the_first_worker_logs_even_when_that_changes():
    first, stream, root = [True], io.StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logging_setup.configure(lambda: first[0], stream)
        for first[0] in (True, False):
            logging.getLogger('recipe').info('said by %s', first[0])
            logging.getLogger('recipe').warning('warned by %s', first[0])
            logging.getLogger('hvd_dynamic').info('told by %s', first[0])
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = [line.split(' ', 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ['said by True', 'warned by True', 'told by True', 'warned by False', 'told by False']


# -- the demo's parts ------------------------------------------------------------------------------------------


def test_lines_of_a_growing_file_come_whole_and_once(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    lines = Lines(path)
    assert lines.new() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert lines.new() == [{'a': 1}]
    with open(path, 'a') as file:
        file.write('2}\n')
    assert lines.new() == [{'a': 2}] and lines.new() == []


def test_list_of_hosts_follows_resize(tmp_path):
    job = ElasticJob(['-c', ''], tmp_path / 'a b', 2, 4)
    script = tmp_path / 'a b' / 'discover-hosts.sh'
    assert subprocess.check_output([str(script)], text=True) == 'localhost:2\n'
    job.resize(3)
    assert subprocess.check_output([str(script)], text=True) == 'localhost:3\n'


def test_trial_of_an_epoch_needs_no_other_warm_up():
    args = arguments.parse(['--num-epochs', '1'])
    assert args.warmup_epochs == 0.1
