"""Checkpoints: a commit on disk, from which a new job goes on (docs/checkpoints.md)."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import mxnet as mx

from . import checkpointfile, values
from .checkpointfile import CheckpointFault, CheckpointFile
from .sync import shapes_fit
from .version import __version__

__all__ = ['Checkpoints', 'CheckpointFolder']

log = logging.getLogger('hvd_dynamic')

# What a training cannot change on its way, besides the network: the rest of its arguments may differ after a resume.
_FIXED = {'optimizer', 'policy', 'reference_batch', 'length of the data set', 'seed of the sampler',
          'shuffle of the sampler', 'logical workers'}
_HYPERPARAMETERS = ('momentum', 'wd', 'beta1', 'beta2', 'epsilon', 'clip_gradient', 'multi_precision')


class CheckpointFolder:
    """The checkpoints in one folder: a file each, the last few kept.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there.
    keep : int, default 3
        How many to keep, >= 1: those of the highest updates.

    Raises
    ------
    ValueError
        For a folder that cannot be used and a `keep` that is no positive integer.
    """

    def __init__(self, folder, keep=3):
        self.path = Path(folder)
        self.keep = _checked_keep(keep)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError('it is not writable')
        except OSError as error:
            raise ValueError(f'the folder {str(folder)!r} cannot be used for checkpoints: {error}; give one that can be '
                             f'written to') from None

    def updates(self):
        """The updates of which there is a file, in ascending order; whether it is usable is another question."""
        return sorted(update for update in map(checkpointfile.update_of, os.listdir(self.path)) if update is not None)

    def file(self, update):
        """The path of the checkpoint of an update."""
        return self.path / checkpointfile.file_name(update)

    def save(self, update, header, arrays):
        """Write the checkpoint of `update`, then remove those that are one too many.

        Returns
        -------
        (Path, int)
            The file and its length in bytes.
        """
        checkpointfile.remove_leftovers(self.path)
        path = self.file(update)
        length = checkpointfile.write(path, header, arrays)
        # Those of later updates are another training's: they are not ours to remove.
        for old in [u for u in self.updates() if u <= update][:-self.keep]:
            self._remove(self.file(old))
        return path, length

    @staticmethod
    def _remove(path):
        try:
            if path.is_file() and not path.is_symlink():
                path.unlink()
        except OSError as error:
            log.warning('the old checkpoint %s cannot be removed: %s', path, error)


def _checked_keep(keep):
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f'keep_checkpoints must be an integer of at least 1, got {keep!r}')
    return keep


@dataclass
class _Write:
    """A write that is under way or done."""

    update: int
    target: Path
    thread: threading.Thread | None = None
    path: Path | None = None
    length: int = 0
    seconds: float = 0.0
    error: BaseException | None = None


class Checkpoints:
    """The checkpoints of one `GluonState`: the folder, the write under way, and what was taken up.

    Attributes
    ----------
    last : Path or None
        The newest file that is known to be good.
    resumed_from : Path or None
        The file that this worker took up.
    missing : Path or None
        The file that this worker was to take up and does not have.
    """

    def __init__(self, folder, keep):
        self.folder = None if folder is None else CheckpointFolder(folder, keep)
        self._keep = _checked_keep(keep)
        self._write = None
        self._unusable = set()
        self.last = self.resumed_from = self.missing = None

    # -- writing -----------------------------------------------------------------------------------------------

    def target(self, folder):
        """The folder to use: `folder` if one is given.

        Raises
        ------
        ValueError
            There is none, or it cannot be used.
        """
        if folder is not None:
            return CheckpointFolder(folder, self._keep)
        if self.folder is None:
            raise ValueError('no folder for checkpoints is known: give GluonState(..., checkpoint_dir=FOLDER), or the '
                             'folder itself to this call')
        return self.folder

    def begin(self, state, target):
        """Copy the last commit to the host and have a thread write it, when the write before is done."""
        self.wait(state)
        write = self._write = _Write(state._committed.update, target.file(state._committed.update))
        try:
            header, arrays = snapshot(state)
        except MemoryError as error:
            write.error = error
            return
        # Not a daemon: a worker that ends, or leaves the job, finishes its file first.
        write.thread = threading.Thread(target=_carry_out, args=(write, target, header, arrays), name='checkpoint')
        write.thread.start()

    def wait(self, state):
        """Wait for the write under way, and tell of it.

        Returns
        -------
        Path or None
            The newest checkpoint of this job if this worker wrote it and it is good.
        """
        write = self._write
        if write is None:
            return None
        if write.thread is not None:
            write.thread.join()
        self.tell(state)
        return write.path

    def tell(self, state):
        """Say how the last write went, once, if it is over."""
        write = self._write
        if write is None or write.thread is not None and write.thread.is_alive():
            return
        finished, write.thread = write.thread is not None, None
        if write.error is not None:
            error, write.error = write.error, None
            why = str(error) or type(error).__name__
            still = f'the previous checkpoint {self.last} is still good' if self.last else 'there is no earlier one'
            log.warning('the checkpoint %s could not be written: %s; %s, and training goes on', write.target, why, still)
            state._checkpoint_event('checkpoint_failed', path=str(write.target), error=why)
        elif finished:
            self.last = write.path
            log.debug('checkpoint %s: %d bytes in %.2f s', write.path, write.length, write.seconds)
            state._checkpoint_event('checkpointed', path=str(write.path), bytes=write.length, seconds=write.seconds)

    # -- reading -----------------------------------------------------------------------------------------------

    def newest(self):
        """``[update, path]`` of the newest file in the folder that is not known to be unusable, or None."""
        try:
            known = [] if self.folder is None else self.folder.updates()
        except OSError:
            known = []          # the folder has vanished since: the next save will tell
        usable = [update for update in known if os.path.realpath(self.folder.file(update)) not in self._unusable]
        return [usable[-1], str(self.folder.file(usable[-1]))] if usable else None

    def resume(self, state, source):
        """Take up a checkpoint: a file, or the newest usable one of a folder.

        Returns
        -------
        bool
            False if there is none.
        """
        path = self.target(None).path if source is None else Path(source)
        if path.suffix == '.hvd' and not path.is_dir():
            if not os.path.lexists(path):
                # No error yet: others may have it, and when a newcomer joins the job may have removed it long ago.
                self.missing = path
                return False
            self._take_up(state, path)
            return True
        faults = []
        for file in _newest_first(path):
            try:
                self._take_up(state, file)
                return True
            except CheckpointFault as fault:
                self._unusable.add(os.path.realpath(file))
                faults.append(str(fault))
                log.warning('%s; going back to the checkpoint before it', fault)
        if faults:
            raise ValueError(f'none of the {len(faults)} checkpoints in {path} can be used ({faults[0]}); to begin anew, '
                             f'move them to another place or give another folder')
        return False

    def _take_up(self, state, path):
        with CheckpointFile(path) as file:
            load(state, file)
        self.last = self.resumed_from = path


def _newest_first(folder):
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f'the checkpoints in {folder} cannot be read: {error}') from None
    updates = sorted((u for u in map(checkpointfile.update_of, names) if u is not None), reverse=True)
    return [folder / checkpointfile.file_name(update) for update in updates]


def _carry_out(write, target, header, arrays):
    """On the thread: it must not touch MXNet, and no failure may end the training."""
    begun = time.monotonic()
    try:
        write.path, write.length = target.save(write.update, header, arrays)
    except Exception as error:
        write.error = error
    write.seconds = time.monotonic() - begun


# -- a state as header and arrays --------------------------------------------------------------------------------

def check_types(state):
    """Refuse what a checkpoint of the last commit cannot hold, on all workers alike.

    Raises
    ------
    TypeError
        Names the parameter or attribute.
    """
    for param in state._params:
        checkpointfile.check_dtype(param.dtype, f'parameter {param.name}')
    for name, (_, arrays) in state._committed.attributes.items():
        for array in arrays:
            checkpointfile.check_dtype(array.dtype, f'state attribute {name!r}')


def snapshot(state):
    """The last commit, copied to the host.

    Returns
    -------
    header : dict
    arrays : list of ndarray
        In the order of header['places'].
    """
    commit, places, arrays = state._committed, [], []

    def put(array, *place):
        places.append(list(place))
        arrays.append(array.asnumpy() if isinstance(array, mx.nd.NDArray) else array)
    for copies in (state._weights, commit.statistics):
        for number, array in copies.items():
            put(array, 'parameter', number)
    for number, array in state._optimizer_state.items():
        put(array, 'optimizer', number)
    for name, (_, parts) in commit.attributes.items():
        for array in parts:
            put(array, 'attribute', name)
    world, schedule = state.world, commit.numbers['trainer']['schedule']
    return {'library': __version__, 'time': time.time(), 'update': commit.update, 'samples': schedule['samples'],
            'epoch': commit.numbers['sampler']['epoch'], 'world_size': world.size,
            'arguments': state._arguments(), 'parameters': state._describe_parameters(),
            'numbers': commit.numbers, 'attributes': {name: skeleton for name, (skeleton, _) in commit.attributes.items()},
            'places': places}, arrays


def load(state, file):
    """Take up a checkpoint that has been found whole, as the state's last commit.

    Raises
    ------
    ValueError
        It belongs to another network, optimizer or data set.
    """
    header = file.header
    _check_header(file)
    _check_fits(state, file.path, header)
    shapes = {}
    for (kind, key), (_, shape) in zip(header['places'], header['arrays']):
        shapes.setdefault(kind, {})[key] = tuple(shape)
    for number, shape in shapes.get('parameter', {}).items():
        param = state._params[number]
        if param._data is None:
            param.shape = shape
            param._finish_deferred_init()
        if param._data is None:
            raise ValueError(f'parameter {param.name} has not been initialised: call net.initialize() before state.resume()')
    _tell_what_differs(state, header)
    state.load_numbers(header['numbers'])
    targets = {'parameter': {number: state._params[number]._data[0] for number in shapes.get('parameter', ())},
               'optimizer': dict(enumerate(state.trainer.state_arrays()))}
    wanted = {number: array.shape for number, array in targets['optimizer'].items()}
    if wanted != shapes.get('optimizer', {}):
        raise ValueError(f'{file.path} has other optimizer state ({len(shapes.get("optimizer", {}))} arrays) than this '
                         f'optimizer keeps for the network ({len(wanted)} arrays); make the trainer with the same arguments')
    parts = {}
    for (kind, key), array in zip(header['places'], file.arrays()):
        if kind == 'attribute':
            parts.setdefault(key, []).append(array)
        else:
            # Through the parameter's own device: a checkpoint knows nothing of devices.
            place = targets[kind][key]
            mx.nd.array(array, ctx=place.context, dtype=place.dtype).copyto(place)
    # An attribute that the script has got since then keeps its first value.
    own = dict(state._attributes)
    state._load_attributes({name: values.unpack(skeleton, parts.get(name, []))
                            for name, skeleton in header['attributes'].items()})
    for name in own.keys() - header['attributes'].keys():
        state._attributes[name] = own[name]
    state._keep_as_commit()


def _check_header(file):
    """A file can be whole and still say nonsense: then it is not one of ours."""
    header = file.header
    try:
        numbers, parameters = header['numbers'], header['parameters']
        good = (type(header['update']) is int and header['update'] == numbers['trainer']['update']
                and type(numbers['training']) is str
                and len(header['places']) == len(file) and len(numbers['parameters']) == len(parameters)
                and all(type(header[name]) is dict for name in ('arguments', 'attributes'))
                and all(len(one) == 4 and type(one[0]) is str for one in parameters))
        for kind, key in header['places']:
            if kind == 'attribute':
                good = good and key in header['attributes']
            else:
                count = {'parameter': len(parameters), 'optimizer': len(file)}[kind]
                good = good and type(key) is int and 0 <= key < count
    except (LookupError, TypeError, ValueError):
        good = False
    if not good:
        raise CheckpointFault(f'{file.path} is damaged: its header lacks what a checkpoint must have')


def _check_fits(state, path, header):
    """One error that names the first thing that differs."""
    def differs(what, then, now):
        raise ValueError(f'{path} does not fit: {what} was {then} when it was written and is {now} here; start with the '
                         f'same arguments, or begin anew with another folder')
    for name, now in state._arguments().items():
        then = header['arguments'].get(name)
        if name in _FIXED and then != now:
            differs(name, repr(then), repr(now))
    now = state._describe_parameters()
    if len(now) != len(header['parameters']):
        differs('the number of parameters', len(header['parameters']), len(now))
    for (_, old_shape, old_dtype, _), (name, shape, dtype, _) in zip(header['parameters'], now):
        if not shapes_fit(old_shape, shape):
            differs(f'the shape of parameter {name}', tuple(old_shape), tuple(shape))
        if old_dtype != dtype:
            differs(f'the type of parameter {name}', old_dtype, dtype)
    for (kind, key), (_, shape) in zip(header['places'], header['arrays']):
        if kind == 'parameter' and not shapes_fit(shape, now[key][1]):
            differs(f'the shape of parameter {now[key][0]}', tuple(shape), tuple(now[key][1]))
    indices = header['numbers']['trainer']['states']
    if indices and max(indices) >= len(state.trainer._params):
        differs('the number of trained parameters', f'at least {max(indices) + 1}', len(state.trainer._params))


def _tell_what_differs(state, header):
    """What may differ from before, and what becomes of it."""
    for name, now in state._arguments().items():
        then = header['arguments'].get(name)
        if then != now:
            log.warning('%s was %s when the checkpoint was written; it is %s from now on', name, then, now)
    now = state.numbers()['trainer']['optimizer']['scalars']
    for name, then in header['numbers']['trainer']['optimizer']['scalars'].items():
        if name in _HYPERPARAMETERS and name in now and now[name] != then:
            log.warning("the optimizer's %s stays %s as in the checkpoint, not %s", name, then, now[name])


