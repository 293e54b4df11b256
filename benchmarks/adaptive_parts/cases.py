"""What is compared. Imports neither MXNet nor Horovod."""

__all__ = ['VARIANTS', 'SCENARIOS', 'WORKERS', 'DATA', 'TARGET', 'share_of']

WORKERS = 3
DATA = {'samples': 6000, 'features': 5000, 'labels': 300}
BATCH, HIDDEN = 64, 64
# For a batch of BATCH samples. The linear scaling rule for all: `sync` multiplies it by the number of workers, for its batch
# is that much larger; and the mean of replicas moves only as far as one of them, so each must go that much further.
LEARNING_RATE = 1.0
MEGA_BATCH = 100 * BATCH        # as in the paper; an epoch is shorter, so there is a merge at its end
TARGET = 0.75       # precision at 1

# Name of a variant: flags of the extreme classification recipe.
VARIANTS = {
    'sync': ['--algorithm', 'sync'],
    'averaging': ['--algorithm', 'averaging'],
    'crossbow': ['--algorithm', 'crossbow'],
    'adaptive': ['--algorithm', 'adaptive'],
    'adaptive, no momentum': ['--algorithm', 'adaptive', '--merge-momentum', '0', '--perturbation', '0'],
}

# Name of a scenario: by rank, how many times slower than the fastest; for `changes` in the first and the second half.
SCENARIOS = {
    'k=4': [[1, 1, 4]],
    'k=1': [[1, 1, 1]],
    'k=2': [[1, 1, 2]],
    'unequal': [[1, 2, 4]],
    'changes': [[1, 1, 4], [4, 1, 1]],
}


def share_of(slowness, full):
    """The part of a core that a worker may use for computing."""
    return full / slowness
