"""Elastic training recipes for Gluon: one package a task, and what they share in `common`."""
