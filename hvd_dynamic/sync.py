"""How the workers of a new world come to the same state, the freshest one."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from . import values
from .errors import JoinFailed
from .sharing import average_arrays, share_arrays

__all__ = ['synchronise', 'Meeting', 'shapes_fit']

log = logging.getLogger('hvd_dynamic')


@dataclass(frozen=True)
class Meeting:
    """What the workers of a new world told each other.

    Attributes
    ----------
    old, new : dict of str to str
        The processes of the old and the new world: token to ``host:slot``. `old` is empty at the start of a job.
    slots : list of str
        By rank.
    lost : list of str
        Slots of the old world whose workers no longer know what they did in it: they are gone, or begin anew.
    update : int
        The committed update that all go on from.
    rolled_back : int
        Updates that the furthest worker had begun after that one.
    failed : bool
        Whether the old world ended by a failure.
    survivor : bool
        Whether this worker was in the old world.
    first_survivor : bool
        Whether it is the one with the lowest rank of those.
    worlds : int
        How many worlds training has gone through, with this one.
    resumed_from : str or None
        At the start of a job, the checkpoint that all go on from.
    """

    old: dict
    new: dict
    slots: list
    lost: list
    update: int
    rolled_back: int
    failed: bool
    survivor: bool
    first_survivor: bool
    worlds: int
    resumed_from: str | None = None


def synchronise(state, failed=False, begun=0):
    """Bring all workers of a world that has just been entered to the state of the freshest one.

    The source is a survivor with the highest committed update (the lowest rank of those); at the start of a job, a worker
    that has taken up a checkpoint. Nothing is sent if all have it.
    Running statistics are averaged over the workers that had it. At the end every worker has committed the result.

    Parameters
    ----------
    state : GluonState
        On survivors: as at its last commit.
    failed : bool
        Whether this worker left the old world by a failure.
    begun : int
        The last update that this worker had begun.

    Returns
    -------
    Meeting

    Raises
    ------
    ValueError
        On all workers alike, if their networks, optimizers, data or schedules do not fit together.
    """
    world = state.world
    greeting = _greeting(state, failed, begun)
    everyone = [values.from_bytes(data) for data in world.allgather_bytes(values.to_bytes(greeting), 'sync.greeting')]
    _check_place(everyone, world.rank)
    # One that was left out of the last world, because it was frozen, say, knows nothing of it and counts as a newcomer.
    worlds = max(one['worlds'] for one in everyone)
    survivors = [rank for rank, one in enumerate(everyone) if worlds and one['worlds'] == worlds]
    _check_newcomers(everyone, survivors, world.rank)
    # A newcomer's checkpoint counts for nothing where there are survivors: all of them have committed what was written to
    # disk since the job began, but the disk of a newcomer may hold what another job left there.
    candidates = survivors or range(len(everyone))
    update = max(everyone[rank]['update'] for rank in candidates)
    fresh = [rank for rank in candidates if everyone[rank]['update'] == update]
    if not survivors:
        _check_checkpoints(everyone, update)
    source = _choose(everyone, fresh)
    statistics = {i: array.copy() for i, array in state._statistics().items()}
    if any(one['update'] != update or one['digest'] != everyone[source]['digest'] for one in everyone) or update < 0:
        _transfer(state, source)
    if update >= 0 and not all(everyone[rank]['averaged'] for rank in fresh):
        arrays = state._statistics()
        if world.rank in fresh:
            for i, own in statistics.items():
                own.copyto(arrays[i])
        average_arrays(world, list(arrays.values()), world.rank in fresh, len(fresh), 'sync.statistics')
    state._share_first_initialisation(source)
    old = {token: slot for rank in survivors for token, slot in everyone[rank]['old'].items()}
    surviving = {token for rank in survivors for token in everyone[rank]['here']}
    return Meeting(old=old, new={token: slot for one in everyone for token, slot in one['here'].items()},
                   slots=[slot for one in everyone for slot in one['here'].values()],
                   lost=[slot for token, slot in old.items() if token not in surviving], update=max(update, 0),
                   rolled_back=max([0, *(everyone[rank]['begun'] - update for rank in survivors)]),
                   failed=any(everyone[rank]['failed'] for rank in survivors), worlds=worlds + 1,
                   survivor=world.rank in survivors,
                   first_survivor=bool(survivors) and world.rank == survivors[0],
                   resumed_from=None if survivors else everyone[source]['resumed_from'])


def _choose(everyone, fresh):
    """Of the workers with the freshest commit one that most others agree with, and that knows the most parameters."""
    digests = [everyone[rank]['digest'] for rank in fresh]
    return max(fresh, key=lambda rank: (digests.count(everyone[rank]['digest']),
                                        sum(map(_known, everyone[rank]['parameters'])), -rank))


def _greeting(state, failed, begun):
    world, commit = state.world, state._committed
    checkpoints = state._checkpoints
    # Two files of one update need not hold the same (those of two jobs, on two disks), so all of it is compared.
    resumed = commit is not None and not state._worlds
    return {
        'here': world.members(), 'call': state._call, 'old': state._old_members, 'worlds': state._worlds,
        'failed': failed, 'begun': begun,
        'update': -1 if commit is None else commit.update,
        'digest': '' if commit is None else state.digest(arrays=failed or resumed),
        'averaged': commit is not None and commit.averaged,
        'parameters': state._describe_parameters(), 'arguments': state._arguments(),
        'resumed_from': str(checkpoints.resumed_from) if resumed else None, 'training': state._training,
        'newest_checkpoint': checkpoints.newest(),
        'missing_checkpoint': None if checkpoints.missing is None else str(checkpoints.missing),
    }


def _known(parameter):
    return parameter[3]


def _check_place(everyone, rank):
    """Newcomers start their script at the top; they cannot join others that are in a later training function."""
    calls = [one['call'] for one in everyone]
    if len(set(calls)) == 1:
        return
    if not everyone[rank]['old'] and calls[rank] < max(calls):
        raise ValueError(f'this worker is in training function number {calls[rank]} of its script, the others are in number '
                         f'{max(calls)}: a worker can join a job only in its first one; put the phases of a training into '
                         f'one function')
    raise JoinFailed('a newcomer was in another training function and leaves again')


def _check_checkpoints(everyone, update):
    """Refuse to start from anything but what was asked for, and beside checkpoints that a later resume would take."""
    resumed = {one['training']: one['resumed_from'] for one in everyone if one['resumed_from'] is not None}
    if len(resumed) > 1:
        first, second = list(resumed.values())[:2]
        raise ValueError(f'workers have taken up checkpoints of different trainings, such as {first} and {second}: move '
                         f'those that do not belong here to another place')
    missing = [one['missing_checkpoint'] for one in everyone if one['missing_checkpoint'] is not None]
    if missing and update < 0:
        raise ValueError(f'there is no checkpoint {missing[0]}: give the path of one, or its folder')
    for newest in [one['newest_checkpoint'] for one in everyone if one['newest_checkpoint'] is not None]:
        if newest[0] > update:
            raise ValueError(f'there is a checkpoint {newest[1]} of an earlier training, but this one starts at update '
                             f'{max(update, 0)}: go on from it with state.resume() or --resume auto, give another '
                             f'checkpoint_dir, or move the files to another place')


def _check_newcomers(everyone, survivors, rank):
    """A newcomer that was started with another script or other arguments leaves; it does not end the others' training."""
    try:
        _check_alike(everyone)
    except ValueError as error:
        if not survivors or rank not in survivors:
            raise
        _check_alike([everyone[survivor] for survivor in survivors])
        log.warning('a newcomer does not fit and leaves again: %s', error)
        raise JoinFailed('a newcomer does not fit') from None


def _check_alike(everyone):
    """Raise the same error on all workers if two of them were not started with the same script and arguments."""
    first = everyone[0]
    for rank, one in enumerate(everyone):
        for name, value in first['arguments'].items():
            if one['arguments'][name] != value:
                raise ValueError(f"{name} differs between workers: {value!r} on rank 0, {one['arguments'][name]!r} on rank "
                                 f'{rank}; start all workers with the same arguments')
        if len(one['parameters']) != len(first['parameters']):
            raise ValueError(f"the number of parameters differs between workers: {len(first['parameters'])} on rank 0, "
                             f"{len(one['parameters'])} on rank {rank}; build the same network everywhere")
    for parameters in zip(*(one['parameters'] for one in everyone)):
        name, shape, dtype, _ = parameters[0]
        for rank, (_, other_shape, other_dtype, _) in enumerate(parameters):
            for other in range(rank):
                if not shapes_fit(parameters[other][1], other_shape):
                    raise ValueError(f'parameter {name} differs in shape between workers: {tuple(parameters[other][1])} on '
                                     f'rank {other}, {tuple(other_shape)} on rank {rank}; build the same network everywhere')
            if other_dtype != dtype:
                raise ValueError(f'parameter {name} differs in type between workers: {dtype} on rank 0, {other_dtype} on '
                                 f'rank {rank}; build the same network everywhere')


def shapes_fit(a, b):
    """Whether two shapes can be of the same parameter: lengths that are not known yet (0 or None) fit any."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y or x <= 0 or y <= 0 for x, y in zip(a, b))


def _transfer(state, source):
    """Give all that `source` has to all workers."""
    world, trainer = state.world, state.trainer
    mine = b'-'
    if world.rank == source:
        mine = values.to_bytes({
            'numbers': state.numbers(),
            'attributes': {name: values.plain(value) for name, value in state._attributes.items()},
            'shapes': [list(p.shape) if p._data is not None else None for p in state._params]})
    given = values.from_bytes(world.allgather_bytes(mine, 'sync.numbers')[source])
    known = [param for param, shape in zip(state._params, given['shapes']) if shape is not None]
    if world.rank != source:
        for param, shape in zip(state._params, given['shapes']):
            if shape is not None and param._data is None:
                param.shape = tuple(shape)
                param._finish_deferred_init()
        state.load_numbers(given['numbers'])
        state._load_attributes(given['attributes'])
    share_arrays(world, [p._data[0] for p in known] + trainer.state_arrays(), source, 'sync.arrays')
