"""The text format of the Extreme Classification Repository, the synthetic data, precision, and the recipe's flags."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.extreme_classification import arguments, synthetic, xmlformat
from gluon_examples.extreme_classification.precision import hits

GOOD = '3 10 5\n0,4 1:0.5 9:2\n 3:1e-1\n2\n'


def read(tmp_path, text):
    path = tmp_path / 'data.txt'
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return xmlformat.read(path)


def test_rows_without_labels_or_features_are_kept(tmp_path):
    samples = read(tmp_path, GOOD)
    assert len(samples) == 3 and samples.features.shape == (3, 10) and samples.labels.shape == (3, 5)
    assert samples.features.toarray()[0].tolist() == [0, 0.5, 0, 0, 0, 0, 0, 0, 0, 2]
    assert samples.features[1].indices.tolist() == [3] and samples.features[1, 3] == np.float32(0.1)
    assert samples.features[2].nnz == 0 and samples.labels[1].nnz == 0
    assert samples.labels.toarray().tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0]]


@pytest.mark.parametrize('change', [lambda t: t.replace('\n', '\r\n'), lambda t: t[:-1], lambda t: t.replace('9:2', '9:2 '),
                                    lambda t: t.replace('1:0.5 9:2', '9:2 1:+.5')])
def test_what_means_the_same_reads_the_same(tmp_path, change):
    expected, got = read(tmp_path, GOOD), read(tmp_path, change(GOOD))
    assert (expected.features != got.features).nnz == 0 and (expected.labels != got.labels).nnz == 0


def test_labels_and_indices_that_come_twice_count_once_and_add_up(tmp_path):
    samples = read(tmp_path, '1 5 5\n2,2 1:1 1:0.5\n')
    assert samples.labels.toarray().tolist() == [[0, 0, 1, 0, 0]] and samples.features[0, 1] == 1.5


NUMBERS = st.one_of(
    st.floats(-1e6, 1e6, width=32).map(repr), st.integers(0, 10**15).map(str),
    st.builds('{}.{}'.format, st.integers(0, 10**9), st.integers(0, 10**9)),
    st.builds('{}.'.format, st.integers(0, 99)), st.builds('.{}'.format, st.integers(0, 10**12)),
    st.floats(-1e30, 1e30).map('{:e}'.format))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sets(st.integers(0, 670000), max_size=4),
                          st.dictionaries(st.integers(0, 135908), NUMBERS, max_size=6)), min_size=1, max_size=8),
       st.sampled_from([1 << 20, 64, 9]))
def test_numbers_are_those_of_python(tmp_path_factory, rows, chunk):
    lines = [','.join(map(str, labels)) + ''.join(f' {i}:{v}' for i, v in features.items()) for labels, features in rows]
    text = f'{len(rows)} 135909 670001\n' + '\n'.join(line or ' ' for line in lines) + '\n'
    before, xmlformat._CHUNK = xmlformat._CHUNK, chunk
    try:
        samples = read(tmp_path_factory.mktemp('xml'), text)
    finally:
        xmlformat._CHUNK = before
    for row, (labels, features) in enumerate(rows):
        assert samples.labels[row].indices.tolist() == sorted(labels)
        own = samples.features[row]
        assert own.indices.tolist() == sorted(features)
        np.testing.assert_allclose(own.data, [np.float32(float(features[i])) for i in own.indices], rtol=2e-7)


@pytest.mark.parametrize('line, message', [
    ('0,4 1:0.5 9:x', "'x' is no part"), ('0,4 1:0.5 9', 'must be "label'), ('0,4 1:0.5:2', 'must be "label'),
    ('0,,4 1:0.5', 'must be "label'), (',4 1:0.5', 'must be "label'), ('0,4  1:0.5', 'must be "label'),
    ('0,4 1: 9:2', 'must be "label'),
    ('0,4 :1', 'must be "label'), ('0:4 1:1', 'must be "label'),
    ('0,4 10:0.5', 'index 10 is not a whole number from 0 to 9'),
    ('5 1:0.5', 'label 5 is not a whole number from 0 to 4'), ('-1 1:0.5', 'label -1 is not'),
    ('1.5 1:0.5', 'label 1.5 is not'),
    ('99999999999999999999 1:1', 'label 99999999999999999999 is not'), ('0 1.0:2', 'index 1.0 is not'),
    ('0 1:1.2.3', "'1.2.3' is no number"), ('0 1:.', "'.' is no number"), ('0 1:1e', "'1e' is no number")])
@pytest.mark.parametrize('chunk', [1 << 20, 16])
def test_a_malformed_line_is_named(tmp_path, monkeypatch, line, message, chunk):
    monkeypatch.setattr(xmlformat, '_CHUNK', chunk)
    with pytest.raises(DamagedDataError, match='line 4: ') as raised:
        read(tmp_path, f'4 10 5\n0 1:1\n1 2:2\n{line}\n2 3:3\n')
    assert message in str(raised.value)


@pytest.mark.parametrize('text, message', [
    ('', 'line 1'), ('3 10\n', 'line 1'), ('0,4 1:0.5\n', 'line 1'), ('0 10 5\n', 'from 1 to'),
    ('3 10 5\n0 1:1\n', 'says 3 samples, but 1'),
    ('1 10 5\n0 1:1\n\n', 'says 1 samples, but 2'), ('99999999999 10 5\n', 'from 1 to')])
def test_a_wrong_first_line_is_told(tmp_path, text, message):
    with pytest.raises(DamagedDataError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(MissingDataError, match='cannot be read'):
        xmlformat.read(tmp_path / 'none')
    with pytest.raises(MissingDataError, match='cannot be read'):
        xmlformat.read(tmp_path)


# -- synthetic data ------------------------------------------------------------------------------------------------

def test_synthetic_data_is_a_function_of_the_seed():
    one, same, other = (synthetic.make(200, 300, 40, seed) for seed in (1, 1, 2))
    assert (one.train.features != same.train.features).nnz == 0 and (one.test.labels != same.test.labels).nnz == 0
    assert (one.train.features != other.train.features).nnz > 0
    assert len(one.train) == 200 and len(one.test) == 40 and one.test.labels.shape == (40, 40)
    assert set(one.train.labels.data) == {1.0}


def test_synthetic_data_has_power_laws_and_a_best_precision():
    made = synthetic.make(5000, 500, 100)
    counts = np.sort(np.asarray(made.train.labels.sum(0)).ravel())[::-1]
    assert counts[0] > 10 * counts[-20] and counts[:10].sum() > 2 * counts[-50:].sum()
    assert 0.86 < made.best[1] < 0.94 and made.best[1] > made.best[3] > made.best[5]


def test_hits_count_the_best_scores():
    labels = sparse.csr_matrix(np.array([[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]))
    scores = np.array([[0.9, 0.8, 0.1, 0.85, 0.2, 0.3], [1, 2, 3, 4, 5, 6.0]])
    assert hits(scores, labels).tolist() == [1, 2, 2]


# -- flags ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('argv, name', [
    (['--dataset', 'file'], '--dataset'), (['--train-file', 'a'], '--dataset'),
    (['--train-file', 'a', '--test-file', 'b', '--labels', '3'], '--labels'),
    (['--algorithm', 'sync', '--beta', '3'], '--beta'), (['--algorithm', 'sync', '--mega-batch', '300'], '--mega-batch'),
    (['--algorithm', 'averaging', '--min-batch', '3'], '--min-batch'),
    (['--optimizer', 'adam', '--momentum', '0.9'], '--momentum'),
    (['--algorithm', 'sync', '--sparse-grad', 'yes'], '--sparse-grad'), (['--audit-samples'], '--audit-samples'),
    (['--resume', 'auto'], '--resume'), (['--batch-size', '0'], '--batch-size'),
    (['--merge-momentum', '1'], '--merge-momentum')])
def test_flags_that_do_not_fit_are_refused(argv, name, capsys):
    with pytest.raises(SystemExit) as raised:
        arguments.parse(argv)
    assert raised.value.code == 2 and f'argument {name}' in capsys.readouterr().err


def test_defaults_depend_on_the_algorithm():
    adaptive, sync = arguments.parse([]), arguments.parse(['--algorithm', 'sync', '--optimizer', 'adam'])
    assert (adaptive.min_batch, adaptive.max_batch, adaptive.mega_batch, adaptive.merge_momentum) == (4, 32, 1920, 0.9)
    assert adaptive.sparse_grad and not sync.sparse_grad and sync.lr == 0.002
