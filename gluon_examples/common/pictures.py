"""Sample pictures: some panels side by side, a file each."""

import contextlib
import logging

log = logging.getLogger(__name__)


class Panels:
    """The pictures of one folder; iterate over it for their numbers.

    Parameters
    ----------
    folder : Path
        Made when the first picture is.
    count : int
    """

    def __init__(self, folder, count):
        self._folder, self._count = folder, count

    def __iter__(self):
        yield from range(self._count)
        if self._count:
            log.info('saved %d pictures in %s', self._count, self._folder)

    @contextlib.contextmanager
    def figure(self, number, titles):
        """Gives an axis for each title; at the end the picture is written."""
        # Not imported before: its fonts take a second to load, and most runs make no pictures.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.2 * len(titles), 3.4), layout='constrained')
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(titles), squeeze=False)[0]
        for axis, title in zip(axes, titles, strict=True):
            axis.set_title(title, fontsize=10)
            axis.set_axis_off()
        yield axes
        self._folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(self._folder / f'sample-{number:03d}.png', dpi=110)
