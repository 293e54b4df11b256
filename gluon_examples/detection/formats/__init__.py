"""The annotations of detection data sets on disk."""
