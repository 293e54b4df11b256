"""Numbers by name that travel with the gradients, in one small array that is summed over the workers."""

from __future__ import annotations

import mxnet as mx

__all__ = ['Packer', 'Packet', 'Known']


class Packet:
    """Numbers on their way.

    Attributes
    ----------
    array : NDArray
        All numbers, float32, shape (number of names,): what is to be summed, in place.
    """

    def __init__(self, names, array):
        self._names, self.array = list(names), array

    def __getitem__(self, name):
        """The NDArray of one number; waits for nothing."""
        place = self._names.index(name)
        return self.array[place:place + 1]

    def read(self):
        """Wait until they are there; a dict of name to float."""
        return dict(zip(self._names, self.array.asnumpy().tolist()))


class Known:
    """Numbers that have arrived already; read as a `Packet` is."""

    def __init__(self, numbers):
        self._numbers = numbers

    def read(self):
        """A dict of name to float."""
        return self._numbers


class Packer:
    """Makes packets without waiting for the device.

    Examples
    --------
    >>> import mxnet as mx
    >>> packet = Packer().pack({'loss': mx.nd.array([2.5]), 'announced': 1.0}, mx.cpu())
    >>> packet.read()
    {'loss': 2.5, 'announced': 1.0}
    """

    def __init__(self):
        self._constants = {}

    def pack(self, numbers, context):
        """Put numbers together.

        Parameters
        ----------
        numbers : dict of str to (NDArray of shape (1,), or float)
            The same names in the same order on all workers.
        context : mx.Context
            Where the NDArrays are, and where the packet is made.
        """
        arrays = [value if isinstance(value, mx.nd.NDArray) else self._constant(value, context)
                  for value in numbers.values()]
        return Packet(numbers, mx.nd.concat(*arrays, dim=0))

    def _constant(self, value, context):
        # Made once: making an array from a Python number waits until all that is queued on a CPU is done.
        key = str(value), context
        if key not in self._constants:
            self._constants[key] = mx.nd.array([value], ctx=context)
        return self._constants[key]
