"""Which failures come from a lost peer, and which are the user's own."""
import mxnet as mx
import pytest
from mxnet.base import MXNetError

from hvd_dynamic import errors

SHUT_DOWN = ('Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to '
             'allreduce, allgather or broadcast a tensor after one of the ranks finished execution.')


class HorovodInternalError(RuntimeError):
    """As Horovod's own, which is told by its name."""


def chained(cause=None, context=None):
    error = ValueError('the loop broke')
    error.__cause__, error.__context__ = cause, context
    return error


@pytest.mark.parametrize('error', [
    MXNetError(SHUT_DOWN),
    MXNetError('[/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:2041'),
    MXNetError('[enforce fail at pair.cc] Read error: Connection reset by peer'),
    MXNetError('ncclInternalError: internal check failed'),
    HorovodInternalError('x'), errors.JoinFailed('x'),
    chained(cause=MXNetError(SHUT_DOWN)), chained(context=errors.JoinFailed('x')),
    chained(cause=chained(context=MXNetError(SHUT_DOWN)))])
def test_failure_of_a_collective_is_known_also_as_a_cause(error):
    assert errors.is_collective_failure(error)


@pytest.mark.parametrize('error', [
    ValueError(SHUT_DOWN), RuntimeError('Connection reset by peer'), KeyboardInterrupt(), MXNetError('out of memory'),
    MXNetError('Error in operator dense0_fwd: Shape inconsistent, Provided = [3,4], inferred shape=(3,5)'),
    chained(cause=MXNetError('Shape inconsistent')), chained(cause=chained()), ConnectionResetError('peer')])
def test_users_own_errors_are_no_failures(error):
    assert not errors.is_collective_failure(error)


@pytest.mark.parametrize('layer', ['igloo0_fwd', 'Gloomy', 'NCCLike'])
def test_name_of_a_layer_does_not_make_an_error_a_failure(layer):
    assert not errors.is_collective_failure(MXNetError(f'Error in operator {layer}: Shape inconsistent, '
                                                       f'Provided = [3,4], inferred shape=(3,5)'))


def test_chain_that_bites_its_own_tail_ends():
    first, second = ValueError('a'), ValueError('b')
    first.__cause__, second.__cause__ = second, first
    assert not errors.is_collective_failure(first)


def test_drain_passes_the_users_own_error_on():
    errors.drain()
    mx.nd.Custom(mx.nd.ones(1), op_type='hvd_dynamic_test_fails')
    with pytest.raises(MXNetError, match='kCustomOpForward'):
        errors.drain()


def test_drain_swallows_what_a_lost_peer_left():
    calls = [MXNetError(SHUT_DOWN), MXNetError(SHUT_DOWN), None]

    def waitall():
        error = calls.pop(0)
        if error is not None:
            raise error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.nd, 'waitall', waitall)
        errors.drain()
    assert calls == []


def test_room_for_failures_is_made_without_leaving_one_behind():
    errors.make_room_for_failures(20)
    mx.nd.waitall()


class Fails(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        raise ValueError('my own fault')


@mx.operator.register('hvd_dynamic_test_fails')
class FailsProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Fails()
