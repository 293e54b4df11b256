"""Semantic segmentation: `train` is the recipe."""
