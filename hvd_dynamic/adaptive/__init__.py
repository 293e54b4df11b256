"""Adaptive SGD (arXiv 2110.07029): workers of unequal speed, each as busy as it can be. See docs/adaptive.md."""

from .merging import EqualMerging, NormalizedMerging
from .policy import ByLocalBatch
from .sampler import AdaptiveSampler
from .scaling import BatchScaling
from .trainer import AdaptiveTrainer

__all__ = ['AdaptiveSampler', 'AdaptiveTrainer', 'BatchScaling', 'ByLocalBatch', 'EqualMerging', 'NormalizedMerging']
