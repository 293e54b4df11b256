"""What is measured. Imports neither MXNet nor Horovod: the launching process needs none of them."""

from dataclasses import dataclass

__all__ = ['Case', 'CASES', 'GOAL', 'GOAL_FROM_SECONDS', 'DISTURBED', 'ARRAYS', 'LOOPS', 'VARIANTS',
           'LAUNCHERS']

# The goal holds for networks whose step takes this long at least.
GOAL, GOAL_FROM_SECONDS = 1.02, 0.05

# A round counts as disturbed if processes of others use more than this part of the machine.
DISTURBED = 0.1

# Arrays that the parameters of a commit are spread over: as many as ResNet-50 has.
ARRAYS = 160

# How the user's loop looks at its loss: never (the device may run behind), or after every update.
LOOPS = ('free', 'read')

# By kind of job: what is measured in it, in blocks that take turns.
VARIANTS = {
    # hvd.DistributedTrainer as it comes, and with all gradients in one operation, as DynamicTrainer sends them on CPUs
    'plain': ('plain', 'plain-grouped'),
    # the same in an elastic horovodrun, without anything of hvd_dynamic
    'bare': ('plain', 'plain-grouped'),
    # hvd_dynamic in a horovodrun of a fixed number of workers: no driver that looks for hosts
    'static': ('commit',),
    # in an elastic horovodrun
    'elastic': ('commit', 'commit-log', 'no-commit', 'plain'),
}

# How each kind of job is started.
LAUNCHERS = {'plain': 'static', 'bare': 'elastic', 'static': 'static', 'elastic': 'elastic'}


@dataclass(frozen=True)
class Case:
    """A network and what it is fed.

    Attributes
    ----------
    network : str
        A name of GluonCV's model zoo, or 'mlp' for a tiny one.
    image : int
        Height and width.
    batch : int
        Samples of one worker in one update.
    updates : int
        Updates in one block: about a second of them.
    """

    network: str
    image: int
    batch: int
    updates: int

    @property
    def title(self):
        """The case in words."""
        return f'{self.network}, {self.image}x{self.image}, batch {self.batch} a worker'


CASES = {case.network: case for case in (
    Case('cifar_resnet20_v1', 32, 16, 6),
    Case('resnet18_v1b', 64, 8, 2),
    Case('mlp', 8, 16, 300),
)}
