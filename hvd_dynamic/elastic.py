"""The loop around training: enter a world, sync, train, and begin again when the world changes."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from dataclasses import dataclass

from . import errors, handover
from .orphans import end_with_parent
from .state import GluonState, Resize, Stop
from .sync import synchronise
from .termination import STATUS, on_sigterm
from .world import VirtualWorld, WorkerRemoved, World, default_world

__all__ = ['init', 'run', 'current_world', 'rank', 'size', 'local_rank', 'ResizeEvent']

log = logging.getLogger('hvd_dynamic')

_world = None
_calls = 0        # of training functions, in this process
_RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class ResizeEvent:
    """What a resize did; given to callbacks.

    Attributes
    ----------
    old_size, new_size : int
        World sizes.
    added, removed : list of str
        ``host:slot`` of each worker that came or went.
    update : int
        The number of updates done.
    epoch : int
    pause_seconds : float
        From the moment this worker stopped training to the moment it goes on.
    rolled_back_updates : int
        Updates that will be done again; 0 unless a worker failed.
    failed : bool
        Whether a worker was lost (else the resize was announced).
    old_global_batch, global_batch : int
        Samples an update before and from now on.
    old_lr, lr : float
        The learning rate before, and where it goes (the base schedule's own course apart).
    lr_scale : float
        Where the policy's scale goes.
    transition_updates : int
        How many updates it takes until the scale is there.
    """

    old_size: int
    new_size: int
    added: list
    removed: list
    update: int
    epoch: int
    pause_seconds: float
    rolled_back_updates: int
    failed: bool
    old_global_batch: int
    global_batch: int
    old_lr: float
    lr: float
    lr_scale: float
    transition_updates: int

    def __str__(self):
        came = ''.join(f' +{slot}' for slot in self.added)
        went = ''.join(f' -{slot}' for slot in self.removed)
        over = f' over {self.transition_updates} updates' if self.transition_updates > 1 else ''
        again = f', {self.rolled_back_updates} updates to do again' if self.rolled_back_updates else ''
        return (f'{"lost a worker" if self.failed else "resized"}: {self.old_size} -> {self.new_size} workers at update '
                f'{self.update} (epoch {self.epoch}){came}{went}; batch {self.old_global_batch} -> {self.global_batch}, '
                f'lr {self.old_lr:.6g} -> {self.lr:.6g}{over}; pause {self.pause_seconds:.2f} s{again}')


def init(world=None):
    """Prepare this worker; in place of ``hvd.init()``.

    A worker does not join the job here but in the function decorated with `run`, after it has built its network and
    opened its data: the others need not wait for that.

    Parameters
    ----------
    world : World, optional
        Default: `HorovodWorld` in a process that horovodrun started, else a `VirtualWorld` of size 1.
    """
    global _world
    if world is not None and not isinstance(world, World):
        raise TypeError(f'world must be a World, such as VirtualWorld(4), got {world!r}')
    if world is not None or _world is None:
        _world = world or default_world()
        if not isinstance(_world, VirtualWorld):
            end_with_parent()
            errors.make_room_for_failures()
        _show_messages()


def preset(world):
    """Have a later ``init()`` of the script's own take this world."""
    global _world
    _world = world


def _show_messages():
    if not logging.getLogger().handlers and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('%(name)s: %(message)s'))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def current_world():
    """The world of this process.

    Raises
    ------
    RuntimeError
        Before `init`.
    """
    if _world is None:
        raise RuntimeError('hvd_dynamic.init() has not been called: call it first, in place of hvd.init()')
    return _world


def rank():
    """This worker's rank; before training starts, the one that the launcher gave it."""
    return current_world().rank


def size():
    """Number of workers; before training starts, what the launcher said."""
    return current_world().size


def local_rank():
    """This worker's number on its host: which device to use, ``mx.gpu(local_rank())``."""
    return current_world().local_rank


def run(function):
    """Make a training function elastic.

    The function is called anew after each resize and each failure, with the state as it has become; it goes on from
    there (see the README's five lines). Survivors are never restarted.

    Parameters
    ----------
    function : callable
        ``function(state, *args, **kwargs)`` with a `GluonState`.

    Returns
    -------
    callable
        Of the same arguments; returns what `function` returned at last.

    Raises
    ------
    RuntimeError
        When called before `hvd_dynamic.init`.
    TypeError
        When called without a `GluonState`.
    SetupError
        On all workers alike, when arguments, data and number of workers do not fit together.

    Notes
    -----
    A worker whose slot was taken away leaves with exit status 0.
    """
    @functools.wraps(function)
    def wrapper(state, *args, **kwargs):
        here = current_world()
        if not isinstance(state, GluonState):
            raise TypeError(f'the first argument of a function decorated with hvd_dynamic.run must be a GluonState, '
                            f'got {state!r}')
        global _calls
        _calls += 1
        state.bind(here, _calls)
        with on_sigterm(functools.partial(_terminate, here, state)):
            return _loop(here, state, functools.partial(function, state, *args, **kwargs))
    return wrapper


def _terminate(world, state):
    """SIGTERM has come."""
    if not world.joined:
        sys.exit(STATUS)            # nothing that others would not have
    log.log(_loud(world), '%s was told to end (SIGTERM): it does so at the next commit', world.member.slot)
    state.trainer.ask_to_stop()


def _stop(world, state):
    """All workers were told to end, and have committed: write a checkpoint, and go."""
    path = None
    if state.checkpoint_dir is not None:
        state.save_checkpoint()
        path = state.wait_for_checkpoint()
    log.log(_loud(world), 'stopped at update %d%s', state.updates, f'; state.resume() goes on from {path}' if path else '')
    state.log_event('stopped', path=None if path is None else str(path))
    sys.exit(STATUS)


def _loop(world, state, train):
    begun = handover.take_over(state)
    failed, stopped = begun > 0, None
    while True:
        try:
            _enter(world)
            _begin_round(state, failed, begun, stopped)
            failed, begun, stopped = False, 0, None
            result = train()
            state.finish()
            world.end()
            return result
        except WorkerRemoved as reason:
            log.info('%s leaves the job: %s', world.member.slot, reason)
            sys.exit(0)
        except errors.HorovodStuck:
            handover.hand_over(world, state, max(begun, state.updates_begun))
        except Stop:
            _stop(world, state)
        except Resize:
            stopped = time.perf_counter()
            departure = state.trainer.departure_agreed
            world.leave(incomplete=departure)
            if departure and state.trainer.stop_asked:
                log.info('%s leaves the job: it was told to end (SIGTERM)', world.member.slot)
                sys.exit(STATUS)
        except errors.JobFailed as error:
            log.log(_loud(world), '%s ends, because another worker did: %s', world.member.slot, error)
            sys.exit(1)
        except SystemExit as error:
            if world.joined and error.code not in (None, 0):
                _fail(world, f'it exited with status {error.code}')
            raise
        except Exception as error:
            if not errors.is_collective_failure(error):
                if not isinstance(error, errors.SetupError):        # which all raise, or a newcomer alone
                    _fail(world, f'{type(error).__name__}: {error}')
                raise
            if not world.elastic:
                raise RuntimeError('a worker was lost, and this job cannot go on without it: it was not started as an '
                                   'elastic one (horovodrun --min-np --host-discovery-script)') from error
            # MXNet's text is a trace of C++ calls, and the reason in the last line.
            log.debug('a collective failed: %s', (str(error).splitlines() or [''])[-1])
            failed, begun, stopped = True, max(begun, state.updates_begun), stopped or time.perf_counter()
            # Ends what is in flight with an error, so that nothing waits for a peer that is gone.
            world.leave(failed=True)
            errors.drain()
            state.restore()


def _fail(world, error):
    """End the job with an error of the user's own code: the others are told, and do not bury it under their own."""
    world.fail(f'{world.member.slot}: {error}')
    with contextlib.suppress(Exception):
        world.leave(failed=True)
        errors.drain()


def _enter(world):
    """Join, in as many rounds as it takes until all its workers are there."""
    while not world.joined:
        try:
            world.join()
        except errors.JoinFailed as error:
            if not world.elastic:
                raise
            log.debug('a round was given up: %s', error)
            world.leave(failed=True)
            time.sleep(_RETRY_SECONDS)


def _begin_round(state, failed, begun, stopped):
    """Sync the workers of a world that has been entered, and tell what changed."""
    try:
        meeting = synchronise(state, failed, begun)
        old_batch, old_lr = state.begin_round(meeting)
    except ValueError as error:
        raise errors.SetupError(str(error)) from error
    if not meeting.old:
        batch = state.sampler.global_batch
        resumed = meeting.resumed_from is not None
        begun = f'resumed from {meeting.resumed_from} at update {meeting.update}' if resumed else 'started'
        log.log(_loud(state.world), '%s with %d worker%s: batch %d, lr %.6g', begun, len(meeting.new),
                '' if len(meeting.new) == 1 else 's', batch, old_lr)
        more = {'path': meeting.resumed_from, 'undone_updates': state._undone_updates} if resumed else {}
        state.log_event('resumed' if resumed else 'started', world_size=len(meeting.new), workers=meeting.slots,
                        global_batch=batch, samples_per_epoch=state.sampler.length, **more)
        return
    if meeting.old == meeting.new and not meeting.failed:
        return          # another training function in the same world
    schedule = state.trainer.schedule
    event = ResizeEvent(
        old_size=len(meeting.old), new_size=len(meeting.new),
        added=[slot for token, slot in meeting.new.items() if token not in meeting.old],
        removed=[slot for token, slot in meeting.old.items() if token not in meeting.new],
        update=state.updates, epoch=state.sampler.epoch,
        pause_seconds=0.0 if stopped is None else time.perf_counter() - stopped,
        rolled_back_updates=meeting.rolled_back, failed=meeting.failed,
        old_global_batch=old_batch, global_batch=state.sampler.global_batch,
        old_lr=old_lr, lr=schedule.target_lr, lr_scale=schedule.target_scale, transition_updates=schedule.updates_to_target)
    if meeting.survivor:
        log.log(_loud(state.world), '%s', event)
    state.log_event('failed_over' if event.failed else 'resized', old_size=event.old_size, new_size=event.new_size,
                    added=event.added, removed=event.removed, rolled_back_updates=event.rolled_back_updates,
                    downtime_seconds=event.pause_seconds, global_batch=event.global_batch, lr=event.lr,
                    lr_scale=event.lr_scale)
    if meeting.survivor:
        for callback in state.callbacks:
            callback(event)


def _loud(world):
    """One worker speaks for all."""
    return logging.INFO if world.rank == 0 else logging.DEBUG
