"""GluonState: all that a worker must have to go on where another is."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from dataclasses import dataclass, field

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from . import values
from .backup import Backup
from .checkpoint import Checkpoints, check_types
from .runlog import RunLog
from .sampler import ElasticSampler
from .sharing import average_arrays, share_arrays
from .trainer import DynamicTrainer
from .workerstats import WorkerStatistics

__all__ = ['GluonState', 'Resize', 'Stop']

log = logging.getLogger('hvd_dynamic')


class Resize(BaseException):
    """Leaves the step loop for a resize that all workers agreed on. Not an error, so no `except Exception` stops it."""


class Stop(BaseException):
    """Leaves the step loop because the job was told to end (SIGTERM): all is committed."""


@dataclass
class Commit:
    """A commit without its big arrays, which are in the state's backup."""

    update: int
    numbers: dict
    attributes: dict
    statistics: Backup
    averaged: bool = False
    initialised: set = field(default_factory=set)


class GluonState:
    """Parameters, running statistics, optimizer, schedule, sampler, and the user's own attributes.

    `commit` keeps a copy in memory that the job goes back to when a worker is lost; `hvd_dynamic.run` hands the state to
    newcomers.

    Parameters
    ----------
    net : gluon.Block
        Its parameters need not be initialised in full (deferred initialisation).
    trainer : DynamicTrainer
    sampler : ElasticSampler
        The one that the data loader uses.
    run_log : RunLog, optional
        Where to write metrics, events and the audit of samples.
    backup_ctx : mx.Context, optional
        Where commits are kept: ``mx.cpu()`` spares a GPU's memory. Default: beside the originals.
    checkpoint_dir : str or Path, optional
        The folder for `save_checkpoint` and `resume`; made if it is not there.
    keep_checkpoints : int, default 3
        How many checkpoints to keep, >= 1.
    **attributes
        Anything else that belongs to the training, read and set as ``state.name``: JSON values, NumPy and NDArray arrays,
        objects with `state_dict` and `load_state_dict`. An integer `epoch` also tells the sampler which epoch it is.

    Raises
    ------
    TypeError
        For arguments of the wrong kind, and an attribute that cannot be carried.
    ValueError
        For a checkpoint_dir that cannot be written to, and a keep_checkpoints that is no positive integer.

    Notes
    -----
    BatchNorm's running statistics differ by worker during training. Before each evaluation (`average_running_stats`),
    checkpoint and sync they are set to their mean over the workers.
    """

    def __init__(self, net, trainer, sampler, run_log=None, backup_ctx=None, checkpoint_dir=None, keep_checkpoints=3,
                 **attributes):
        for name, value, kind in (('trainer', trainer, DynamicTrainer), ('sampler', sampler, ElasticSampler)):
            if not isinstance(value, kind):
                raise TypeError(f'{name} must be a {kind.__name__}, got {value!r}')
        if not callable(getattr(net, 'collect_params', None)):
            raise TypeError(f'net must be a gluon.Block, got {net!r}')
        if run_log is not None and not isinstance(run_log, RunLog):
            raise TypeError(f'run_log must be a RunLog or None, got {run_log!r}')
        self._attributes = {}
        self._net, self._trainer, self._sampler, self._run_log = net, trainer, sampler, run_log
        self._world, self._call = None, 0
        self._params = list(dict.fromkeys([*net.collect_params().values(), *trainer._params]))
        self._deferred = {}
        self._weights, self._optimizer_state = Backup(backup_ctx), Backup(backup_ctx)
        self._statistics_backups = [Backup(backup_ctx), Backup(backup_ctx)]
        self._pending = self._committed = None
        self._checkpoints = Checkpoints(checkpoint_dir, keep_checkpoints)
        self._undone_updates = 0
        self._training = secrets.token_hex(8)       # the same in all jobs that go on with one training
        self._callbacks = []
        self._slots = []            # of all workers, by rank
        self._worlds = 0            # that training has gone through, as of the last one that this worker was in
        self._old_members = {}      # of the last world that this worker was in: token to slot
        schedule, policy = trainer.schedule, trainer.schedule.policy
        if schedule.samples_per_epoch is None:
            schedule.samples_per_epoch = sampler.length
        if policy.fixed_global_batch:
            sampler.fix_global_batch(schedule.reference_batch, policy.max_local_batch)
        trainer.before_update = self._store_pending
        if run_log is not None and (run_log.digests or sampler.logical_workers is not None):
            trainer.digest = self.weights_digest
        self._complete = True
        for name, value in attributes.items():
            setattr(self, name, value)

    # -- attributes --------------------------------------------------------------------------------------------

    def __setattr__(self, name, value):
        if name.startswith('_'):
            if self.__dict__.get('_complete') and name not in self.__dict__:
                raise AttributeError(f'{name!r} would not be carried to other workers: names that begin with an underscore '
                                     f'are the state\'s own; choose another name')
            object.__setattr__(self, name, value)
            return
        if hasattr(type(self), name):
            raise AttributeError(f'{name!r} is a part of GluonState itself; choose another name for your attribute')
        values.check(name, value)
        if name == 'epoch':
            self._sampler.set_epoch(value)
        self._attributes[name] = value

    def __getattr__(self, name):
        try:
            return self.__dict__['_attributes'][name]
        except KeyError:
            raise AttributeError(f'GluonState has no attribute {name!r}; give it to GluonState({name}=...)') from None

    @property
    def world(self):
        """The world of the job (inside a function decorated with `hvd_dynamic.run`)."""
        if self._world is None:
            raise RuntimeError('GluonState.world is known only inside a function decorated with hvd_dynamic.run')
        return self._world

    @property
    def net(self):
        """The network."""
        return self._net

    @property
    def trainer(self):
        """The trainer."""
        return self._trainer

    @property
    def sampler(self):
        """The sampler."""
        return self._sampler

    @property
    def checkpoint_dir(self):
        """The folder for checkpoints, or None."""
        folder = self._checkpoints.folder
        return None if folder is None else folder.path

    @property
    def updates(self):
        """Updates done so far in the whole run."""
        return self._trainer.update_count

    @property
    def updates_begun(self):
        """Updates of which at least the gradients have been sent."""
        flight = self._trainer.in_flight
        return self._trainer.update_count if flight is None else flight.update

    @property
    def callbacks(self):
        """The functions to call after a resize."""
        return tuple(self._callbacks)

    def register_callback(self, function):
        """Have ``function(event)`` called on every survivor after each resize, before training goes on.

        Parameters
        ----------
        function : callable
            Gets a `hvd_dynamic.elastic.ResizeEvent`: old and new size, who was added and removed, the update, the seconds
            of pause, what learning rate and batch became.
        """
        if not callable(function):
            raise TypeError(f'a callback must be callable, got {function!r}')
        self._callbacks.append(function)

    def bind(self, world, call=1):
        """Called by `hvd_dynamic.run`; `call` counts its training functions in this process."""
        self._world, self._call = world, call
        world.fits = self._sampler.fits
        world.position = lambda: (self._trainer.schedule.samples_seen, self._sampler.length)
        self._trainer.attach(world, self._sampler, WorkerStatistics(self._params))

    def begin_round(self, meeting):
        """Take up work in a world whose workers have met (`hvd_dynamic.sync`): all have the same state now.

        Returns
        -------
        old_global_batch : int
        old_lr : float
            Of the round before; at the start of a job those of now.
        """
        world, sampler, schedule = self._world, self._sampler, self._trainer.schedule
        if meeting.resumed_from is not None:
            self._rewind_log(meeting.update)
        if self._run_log is not None:
            if meeting.survivor:
                mine = [rank for rank, token in enumerate(self._old_members) if token in world.members()]
                if meeting.first_survivor and meeting.failed:
                    self._run_log.recover(meeting.update, sampler, meeting.lost)
                self._run_log.settle(meeting.update, sampler, mine)
            self._run_log.begin_round(meeting.update)
        sampler.set_world(world.size, world.ranks, world.one_pass)
        old_batch, old_lr = schedule.global_batch, schedule.lr_scale and schedule.base_lr() * schedule.lr_scale
        schedule.set_global_batch(sampler.global_batch)
        self._slots, self._old_members, self._worlds = meeting.slots, meeting.new, meeting.worlds
        self._trainer.begin_round()
        commit = self._take()
        commit.averaged = True
        self._store(commit)
        return old_batch or schedule.global_batch, old_lr or schedule.target_lr

    # -- commit and restore --------------------------------------------------------------------------------------

    def commit(self):
        """Keep the present state as the one to go back to, and leave the step loop if a resize was announced.

        Waits for nothing: what depends on collectives is copied when the next update begins, by which time this one is
        known to have succeeded on this worker. Between the passes of one update (gradient accumulation) it does nothing.
        """
        if self._world is None:
            raise RuntimeError('state.commit() works only inside a function decorated with hvd_dynamic.run')
        if self._trainer.in_update:
            return
        self._checkpoints.tell(self)
        self._pending = self._take()
        trainer = self._trainer
        if trainer.stop_agreed or trainer.resize_agreed or trainer.departure_agreed:
            stop = trainer.stop_agreed
            self._settle()
            raise Stop if stop else Resize

    def _take(self):
        """A commit of the present, all but the big arrays."""
        attributes = {name: values.pack(value, name) for name, value in self._attributes.items()}
        # The next forward pass changes running statistics before the rest is copied, so they are copied at once, into the
        # one of two small backups that the present commit does not use.
        statistics = next(b for b in self._statistics_backups
                          if self._committed is None or b is not self._committed.statistics)
        statistics.store(self._statistics())
        return Commit(self._trainer.update_count, self.numbers(), attributes, statistics,
                      averaged=self._sampler.logical_workers is not None)      # which set them to their mean in each update

    def numbers(self):
        """All of the state that is neither an array nor the user's: what a commit keeps and a sync carries."""
        return {'training': self._training, 'trainer': self._trainer.state_dict(), 'sampler': self._sampler.state_dict(),
                'parameters': [[p.grad_req == 'null', p.lr_mult, p.wd_mult] for p in self._params]}

    def load_numbers(self, numbers):
        """Take up what `numbers` gave."""
        for param, (frozen, lr_mult, wd_mult) in zip(self._params, numbers['parameters']):
            # A script may freeze layers, or change their learning rates, on its way.
            param.lr_mult, param.wd_mult = lr_mult, wd_mult
            if frozen != (param.grad_req == 'null'):
                param.grad_req = 'null' if frozen else 'write'
        self._training = numbers['training']
        self._trainer.load_state_dict(numbers['trainer'])
        self._sampler.load_state_dict(numbers['sampler'])

    def _store_pending(self):
        """Before an update changes the weights: copy them for the pending commit, and write what is known by now."""
        # The last update has been confirmed. No worker took part in it before it had stored its commits up to then.
        settled = 0 if self._committed is None else self._committed.update
        self._log_confirmed()
        if self._run_log is not None:
            self._run_log.settle(settled, self._sampler, self._sampler.ranks)
        if self._pending is not None:
            self._store(self._pending)

    def _store(self, commit):
        weights = self._weight_arrays()
        commit.initialised = set(weights)
        # What went wrong in the last update is raised here. It is over: on a host there is nothing to wait for.
        self._weights.store(weights, wait=True)
        self._optimizer_state.store(dict(enumerate(self._trainer.state_arrays())), wait=True)
        self._committed, self._pending = commit, None

    def _weight_arrays(self):
        return {i: p._data[0] for i, p in enumerate(self._params) if p._data is not None and p._differentiable}

    def _statistics(self):
        return {i: p._data[0] for i, p in enumerate(self._params) if p._data is not None and not p._differentiable}

    def _settle(self):
        """Have everything done, averaged, committed and logged, on all workers: nothing is in flight."""
        self._trainer.confirm()
        self._trainer.wait_for_weights()
        self.average_running_stats()
        self._pending = self._take()
        self._pending.averaged = True
        self._store(self._pending)
        self._world.barrier()
        self._log_confirmed()
        if self._run_log is not None:
            self._run_log.settle(self._committed.update, self._sampler, self._sampler.ranks)

    def restore(self):
        """Go back to the last commit. What arrays keep of a failure must have been drained before."""
        self._pending = None
        if self._run_log is not None:
            # Others may have committed an update that failed here: its samples are then used.
            started = [*self._trainer.take_confirmed(), self._trainer.in_flight]
            for record in filter(None, started):
                self._run_log.started(record, self._slots)
        commit = self._committed
        self._trainer.seed_first()
        for i, param in enumerate(self._params):
            param.__dict__.pop('_init_impl', None)
            known = commit is not None and (i in commit.initialised or i in commit.statistics)
            if i in self._deferred and param._data is not None and not known:
                # Initialised since the commit, by a first forward pass whose update was lost: once more, then, and the
                # digest tells that the values are this worker's own.
                param._data = param._grad = None
                param._deferred_init = self._deferred[i]
                param._finish_deferred_init()
        if commit is None:
            return
        self.load_numbers(commit.numbers)
        self._load_attributes(_unpacked(commit.attributes))
        self._weights.restore(self._weight_arrays())
        commit.statistics.restore(self._statistics())
        self._optimizer_state.restore(dict(enumerate(self._trainer.state_arrays())))

    def _load_attributes(self, loaded):
        for name in [n for n in self._attributes if n not in loaded]:
            del self._attributes[name]
        for name, value in loaded.items():
            present = self._attributes.get(name)
            if callable(getattr(present, 'load_state_dict', None)):
                present.load_state_dict(value)
                continue
            if isinstance(present, NDArray) and isinstance(value, NDArray):
                value = value.as_in_context(present.context)
            self._attributes[name] = value

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(self, folder=None):
        """Write all of the state to disk, to go on from in another job (`resume`). All workers call it.

        It commits, and waits for what is in flight and for the write before, if that is not done. Then rank 0 copies the
        commit, and a thread writes the copy while training goes on. A write that fails (the disk is full, say) is told
        in a warning and an event; it does not end the training.

        Parameters
        ----------
        folder : str or Path, optional
            Default: the state's checkpoint_dir.

        Raises
        ------
        RuntimeError
            Outside of a function decorated with `hvd_dynamic.run`, or in the middle of an update.
        ValueError
            If no folder is known.
        TypeError
            For a parameter or attribute of a type that a checkpoint cannot hold.
        """
        if self._world is None:
            raise RuntimeError('state.save_checkpoint() works only inside a function decorated with hvd_dynamic.run')
        if self._trainer.in_update or self._trainer._reduced:
            raise RuntimeError('state.save_checkpoint() was called in the middle of an update: call it after '
                               'trainer.step(), when trainer.in_update is false')
        target = self._checkpoints.target(folder)
        self._settle()
        check_types(self)
        self._world.barrier()       # a job that ends now has the audit of all that is in the checkpoint
        if self._world.rank == 0:
            self._checkpoints.begin(self, target)

    def wait_for_checkpoint(self):
        """Wait until the last checkpoint is written.

        Returns
        -------
        Path or None
            The file; None if there is none, the write failed, or another worker wrote it.
        """
        return self._checkpoints.wait(self)

    def resume(self, folder=None):
        """Take up the newest usable checkpoint; before the training function is called, by all workers.

        The job may have any number of workers and other devices than the one that wrote it. Workers that have no
        file get the state from those that have. In a job that is running a newcomer gets the survivors' state.

        Parameters
        ----------
        folder : str or Path, optional
            A folder, or one file (``.hvd``), which is then taken and no other: if no worker has it, the training function
            raises SetupError. Default: the state's checkpoint_dir.

        Returns
        -------
        bool
            False if there is no checkpoint.

        Raises
        ------
        ValueError
            The checkpoint belongs to another network, optimizer or data set; no file of the folder can be used.
        RuntimeError
            The training function has been called already.
        """
        if self._world is not None:
            raise RuntimeError('state.resume() must be called before the training function')
        return self._checkpoints.resume(self, folder)

    def _keep_as_commit(self):
        """Commit what has been loaded: the same on all workers that have loaded the same."""
        commit = self._take()
        commit.averaged = True
        self._store(commit)

    def _rewind_log(self, update):
        lost = 0 if self._run_log is None else self._run_log.rewind(update)
        # Nobody writes before all have cut; and who came first has seen the most.
        seen = self._world.allgather_bytes(str(lost).encode(), 'resume.lost')
        self._undone_updates = max(map(int, seen))

    def _checkpoint_event(self, kind, **fields):
        # By the worker that wrote the file, though another may be rank 0 by now.
        if self._run_log is not None:
            self._run_log.event(kind, self._trainer.update_count, **fields)

    # -- evaluation and logs -------------------------------------------------------------------------------------

    def average_running_stats(self):
        """Set BatchNorm's running statistics to their mean over the workers: call it before each evaluation.

        The rule: running means and running variances are averaged, each worker with the same weight. A collective, so all
        workers call it; without effect when there is one worker.
        """
        self._trainer.confirm()
        if self._sampler.logical_workers is not None:
            return          # they are the mean over the logical workers after each update
        statistics = list(self._statistics().values())
        average_arrays(self.world, statistics, name='statistics')

    def log_evaluation(self, **metrics):
        """Write an 'evaluated' event with these numbers to the run's folder (by rank 0; call it on all workers)."""
        self.log_event('evaluated', epoch=self._sampler.epoch, samples=self._trainer.schedule.samples_seen,
                    metrics={name: float(value) for name, value in metrics.items()})

    def weights_digest(self):
        """One number for all that training has made: equal for two trainings if all weights are, bit for bit.

        Waits until the last update is done.

        Returns
        -------
        str
            SHA-256, in hexadecimal, over parameters, auxiliary states (running statistics) and optimizer state, in the order
            of the network, each with its type and shape.
        """
        hasher = hashlib.sha256()
        for array in [*(param._data[0] for param in self._params if param._data is not None), *self._trainer.state_arrays()]:
            hasher.update(f'{np.dtype(array.dtype).str}{array.shape}'.encode())
            hasher.update(array.asnumpy().tobytes())
        return hasher.hexdigest()

    def log_event(self, kind, **fields):
        """Write an event to the run's folder (by rank 0; call it on all workers)."""
        if self._run_log is not None and self._world.rank == 0:
            self._run_log.event(kind, self._trainer.update_count, **fields)

    def _log_confirmed(self):
        records = self._trainer.take_confirmed()
        if self._run_log is None:
            return
        for record in records:
            if self._world.rank == 0:
                self._run_log.metrics(record)
            self._run_log.started(record, self._slots)

    def finish(self):
        """The training function has returned: commit the end, average the statistics, and wait for all workers."""
        self._settle()
        self._checkpoints.wait(self)
        if self._world.collective:
            own = str(self._weights.checksum()).encode()
            if len(set(self._world.allgather_bytes(own, 'finish.weights'))) > 1:
                log.warning('the weights of the workers differ at the end: something in the script draws random numbers or '
                            'changes parameters or optimizer differently on each worker')
        self.log_event('finished', samples=self._trainer.schedule.samples_seen)

    # -- what `sync` compares ------------------------------------------------------------------------------------

    def _arguments(self):
        """What all workers, and a job that goes on from a checkpoint, must have in common, by name."""
        schedule, sampler = self._trainer.schedule, self._sampler
        return {
            'optimizer': type(self._trainer.optimizer).__name__,
            'policy': repr(schedule.policy),
            'reference_batch': schedule.reference_batch,
            'base schedule': schedule.describe_base(),
            'length of the data set': sampler.length,
            'batch_size of the sampler': sampler.batch_size,
            'seed of the sampler': sampler.seed,
            'shuffle of the sampler': sampler.shuffle,
            'logical workers': sampler.logical_workers,
            **self._trainer.arguments(sampler),
        }

    def _describe_parameters(self):
        """Name, shape, type of each parameter, and whether it has values yet."""
        return [[p.name, list(p.shape) if p.shape is not None else None, np.dtype(p.dtype).name, p._data is not None]
                for p in self._params]

    def digest(self, arrays):
        """A hash of the last commit: workers whose hashes differ must sync.

        Parameters
        ----------
        arrays : bool
            Also hash weights and optimizer state, which can differ only if an update ended by a failure.
        """
        hasher = hashlib.sha256()
        commit = self._committed
        hasher.update(json.dumps(commit.numbers, sort_keys=True).encode())
        hasher.update(values.to_bytes(_unpacked(commit.attributes)))
        if arrays and commit.averaged:
            hasher.update(str(commit.statistics.checksum()).encode())
        if set(self._weight_arrays()) != commit.initialised:
            hasher.update(self._world.member.token.encode())
        if arrays:
            hasher.update(f'{self._weights.checksum()} {self._optimizer_state.checksum()}'.encode())
        return hasher.hexdigest()

    # -- deferred initialisation ---------------------------------------------------------------------------------

    def _share_first_initialisation(self, source):
        """Have parameters that no worker knows yet get the values of rank `source` when their first forward pass comes."""
        for i, param in enumerate(self._params):
            param.__dict__.pop('_init_impl', None)      # of a round that is over
            if param._data is not None:
                continue
            original = self._deferred.setdefault(i, param._deferred_init)
            if self._world.collective:
                param._deferred_init = original
                if self._sampler.logical_workers is not None and self._world.rank != source and original:
                    # Random numbers that are drawn to be thrown away would be missing from the logical worker's own.
                    param._deferred_init = (mx.init.Zero(), original[1], mx.init.Zero(), None)
                param._init_impl = self._shared_init(param, i, source)

    def _shared_init(self, param, number, source):
        def init_impl(data, ctx_list):
            del param._init_impl
            param._init_impl(data, ctx_list)
            share_arrays(self._world, [param._data[0]], source, f'first.{number}')
        return init_impl


def _unpacked(attributes):
    return {name: values.unpack(skeleton, arrays) for name, (skeleton, arrays) in sorted(attributes.items())}
