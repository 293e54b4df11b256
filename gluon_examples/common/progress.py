"""How far the training is: a bar on a terminal, lines of log elsewhere; from the first worker alone."""

import contextlib
import logging
import math
import time

from tqdm import tqdm

log = logging.getLogger(__name__)


class Progress:
    """Shows the progress of a training.

    Parameters
    ----------
    num_epochs : int
    log_interval : int
        Updates between two lines where there is no terminal.
    """

    def __init__(self, num_epochs, log_interval):
        self._num_epochs = num_epochs
        self._log_interval = log_interval

    @contextlib.contextmanager
    def epoch(self, state):
        """For the steps of one epoch; gives a function to call with the losses (and their normalizer) after each step.

        Parameters
        ----------
        state : GluonState

        Yields
        ------
        callable
        """
        sampler, first = state.sampler, state.world.rank == 0
        title = f'epoch {state.epoch + 1}/{self._num_epochs}'
        # disable=None: no bar where stderr is not a terminal
        with tqdm(
            total=sampler.length,
            initial=sampler.length - sampler.samples_left,
            desc=title,
            unit='samples',
            leave=False,
            disable=None if first else True,
        ) as bar:
            began, seen, updates, last = time.perf_counter(), sampler.samples_left, state.updates, None

            def step_done(loss, normalizer=None):
                nonlocal began, seen, updates, last
                last = loss
                bar.n = sampler.length - sampler.samples_left
                bar.set_postfix(
                    workers=state.world.size, lr=f'{state.trainer.learning_rate:.4g}', refresh=False
                )
                bar.update(0)
                if first and bar.disable and state.updates - updates >= self._log_interval:
                    # Reading the loss waits for the device, so it is done only here.
                    count = loss.size if normalizer is None else max(1.0, float(normalizer.asscalar()))
                    mean = float(loss.sum().asscalar()) / count
                    now = time.perf_counter()
                    log.info(
                        '%s  %d/%d samples  loss %.4f  lr %.4g  %.0f samples/s',
                        title,
                        sampler.length - sampler.samples_left,
                        sampler.length,
                        mean,
                        state.trainer.learning_rate,
                        (seen - sampler.samples_left) / (now - began),
                    )
                    began, seen, updates = now, sampler.samples_left, state.updates

            yield step_done
        if first and last is not None and not math.isfinite(float(last.sum().asscalar())):
            log.warning('%s: the training loss is no finite number any more; begin anew with a lower --lr', title)
