"""Numbers that travel with the gradients."""
import doctest

import mxnet as mx
import numpy as np

from hvd_dynamic import control


def test_examples_are_true():
    result = doctest.testmod(control)
    assert result.attempted and not result.failed


def test_numbers_are_found_by_name_after_they_were_summed():
    packer = control.Packer()
    packets = [packer.pack({'loss': mx.nd.array([loss]), 'stopping': 1.0, 'normalizer': np.nan}, mx.cpu())
               for loss in (2, 3)]
    packets[0].array += packets[1].array
    assert packets[0]['stopping'].asscalar() == 2 and packets[0]['loss'].asscalar() == 5
    numbers = packets[0].read()
    assert np.isnan(numbers.pop('normalizer')) and numbers == {'loss': 5.0, 'stopping': 2.0}


def test_constants_are_made_once_and_not_changed_by_a_sum():
    packer = control.Packer()
    packer.pack({'a': 1.0}, mx.cpu()).array[:] = 7
    assert packer.pack({'a': 1.0, 'b': 1.0}, mx.cpu()).read() == {'a': 1.0, 'b': 1.0}
    assert len(packer._constants) == 1
