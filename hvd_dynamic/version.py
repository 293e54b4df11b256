"""The version, in a module that imports nothing: setup.py reads it without importing the package."""

__version__ = '0.1.0'
