"""Image classification: `train` is the recipe, `demo` shows it in an elastic job."""
