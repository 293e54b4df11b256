"""Parts of benchmarks.adaptive."""
