"""From the bytes of a JPEG or PNG file to an image."""

import mxnet as mx

from gluon_examples.common.errors import DamagedDataError


def decode(content, name):
    """The picture in `content`.

    Parameters
    ----------
    content : bytes
        A JPEG or PNG file.
    name : str or Path
        Where it came from, for the message.

    Returns
    -------
    NDArray
        uint8, height x width x 3, red first.

    Raises
    ------
    DamagedDataError
        It cannot be decoded.
    """
    try:
        image = mx.image.imdecode(content)
        image.wait_to_read()  # a fault of an operator may only show here
    except mx.base.MXNetError:
        raise DamagedDataError(f'{name} cannot be decoded as a picture; mend or remove it') from None
    return image
