"""Extreme classification: many labels, sparse features, four ways to train on many workers."""
