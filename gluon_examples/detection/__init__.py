"""Object detection: `train` is the recipe."""
