"""Worlds: who is there, and what is refused."""
import doctest
import importlib
import pkgutil

import mxnet as mx
import numpy as np
import pytest

import hvd_dynamic
from hvd_dynamic.world import VirtualWorld, World, default_world


def modules():
    names = [m.name for m in pkgutil.walk_packages(hvd_dynamic.__path__, 'hvd_dynamic.')]
    return ['hvd_dynamic', *(name for name in names if not name.endswith('__main__'))]


@pytest.mark.parametrize('name', modules())
def test_examples_in_the_docstrings_are_right(name):
    module = pytest.importorskip(name)
    assert doctest.testmod(module).failed == 0


def test_every_public_name_of_the_package_is_there():
    for name in hvd_dynamic.__all__:
        assert getattr(hvd_dynamic, name) is not None
    assert set(hvd_dynamic.__all__) <= set(dir(hvd_dynamic))
    with pytest.raises(AttributeError, match="module 'hvd_dynamic' has no attribute 'nothing'"):
        _ = hvd_dynamic.nothing
    assert importlib.import_module('hvd_dynamic.world').HorovodWorld is hvd_dynamic.HorovodWorld


def test_virtual_world_serves_all_its_ranks():
    world = VirtualWorld(3)
    assert world.ranks == (0, 1, 2) and world.rank == 0 and not world.collective and world.elastic
    assert list(world.members().values()) == ['virtual:0', 'virtual:1', 'virtual:2']


def test_virtual_world_is_resized_when_it_is_joined_again():
    world = VirtualWorld(2)
    world.join()
    tokens = set(world.members())
    assert not world.resize_pending()
    world.resize(4)
    assert world.resize_pending() and world.size == 2
    world.leave()
    world.join()
    assert world.size == 4 and world.generation == 2 and not world.resize_pending()
    assert tokens < set(world.members()), 'those who stay are known again'


def test_collectives_of_one_process_give_back_what_they_got():
    world = VirtualWorld(4)
    array = mx.nd.arange(3)
    assert world.allreduce_(array, 'a') is array and array.asnumpy().tolist() == [0, 1, 2]
    world.allreduce_group_([array], 'g')
    assert world.allgather_bytes(b'x', 'b') == [b'x']
    total = np.arange(3)
    assert world.allreduce_sum(total).tolist() == [0, 1, 2] and world.allreduce_sum(total) is not total
    world.barrier()


@pytest.mark.parametrize('size', [0, -1, 1.5, True, '2', None])
def test_size_that_is_none_is_refused(size):
    message = 'size must be a positive integer, the number of workers, got'
    with pytest.raises(ValueError, match=message):
        VirtualWorld(size)
    with pytest.raises(ValueError, match=message):
        VirtualWorld(2).resize(size)


def test_process_without_a_launcher_is_a_world_of_one():
    world = default_world()
    assert isinstance(world, VirtualWorld) and world.size == 1


def test_workers_are_told_apart_by_token_and_slot(monkeypatch):
    monkeypatch.setenv('HOROVOD_HOSTNAME', 'node-7')
    monkeypatch.setenv('HOROVOD_LOCAL_RANK', '3')
    one, other = VirtualWorld(), VirtualWorld()
    assert one.member.slot == other.member.slot == 'node-7:3' and one.member.token != other.member.token
    assert World.members(one) == {one.member.token: 'node-7:3'}


def test_job_of_fixed_size_may_enter_its_world_twice(monkeypatch):
    """As two training functions one after the other do. Horovod itself is left out here."""
    import types

    from hvd_dynamic.world import hvd as module
    fake = types.SimpleNamespace(init=lambda: None, shutdown=lambda: None, rank=lambda: 0, size=lambda: 1,
                                 local_rank=lambda: 0, is_initialized=lambda: False)
    monkeypatch.setattr(module, 'hvd', fake)
    world = hvd_dynamic.HorovodWorld()
    world.join()
    world.join()
    assert (world.rank, world.size, world.elastic) == (0, 1, False) and not world.resize_pending()


def test_init_of_horovod_that_was_left_in_the_script_is_told(monkeypatch):
    from hvd_dynamic.world import hvd as module
    monkeypatch.setattr(module.hvd, 'is_initialized', lambda: True)
    with pytest.raises(RuntimeError, match=r'remove hvd.init\(\) from your script'):
        hvd_dynamic.HorovodWorld().join()


def test_evaluation_is_shared_by_processes_not_by_virtual_workers():
    world = VirtualWorld(8)
    world.join()
    assert (world.size, world.shard) == (8, (0, 1))
