"""The picture of a run: world size, learning rate, loss and throughput over samples, the resizes marked."""
import io

import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import blended_transform_factory

from hvd_dynamic import runseries, runtext

SIZE, DPI = (10, 11), 160
LEFT, RIGHT, BOTTOM = 0.09, 0.905, 0.098

HALO = withStroke(linewidth=3, foreground='white')

# Okabe and Ito's palette, which readers with any kind of colour vision can tell apart; shapes and dashes
# say it again.
INK, GREY, GRID = '#222222', '#6b6b6b', '#e4e4e4'
MAIN, SECOND = '#0072B2', '#CC79A7'
MARKS = {      # kind: colour, marker, dashes of the line, text of the legend
    'grow': ('#009E73', '^', '-', 'workers joined'),
    'shrink': ('#E69F00', 'v', '-', 'workers left'),
    'swap': (GREY, 'D', '-', 'workers exchanged'),
    'failure': ('#D55E00', 'X', (0, (5, 2)), 'failure'),
    'resume': (GREY, 'o', (0, (1, 2)), 'resumed'),
}


def draw(run):
    """Draw a run.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    matplotlib.figure.Figure
        With an Agg canvas; pyplot does not know of it.
    """
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor='white')
    FigureCanvasAgg(figure)
    marks = _marks(run)
    draw_panels = [_draw_world_size, _draw_lr, _draw_loss, _draw_throughput]
    heights = [0.4 if marks else 0.02, 1, 1.1, 1.5, 1.1]
    if np.isfinite(run['noise_scale']).any():
        draw_panels.append(_draw_noise)
        heights.append(1.1)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.11,
                               left=LEFT, right=RIGHT, bottom=BOTTOM, top=0.905)
    lane = figure.add_subplot(grid[0])
    panels = [figure.add_subplot(grid[row], sharex=lane) for row in range(1, len(heights))]
    lane.set_xlim(run.start, max(run.end, run.start + 1))

    for panel, draw_panel in zip(panels, draw_panels):
        _style(panel)
        draw_panel(panel, run)
    _draw_marks(lane, run, marks)
    _draw_epochs(lane, run)

    for panel in panels[:-1]:
        panel.tick_params(labelbottom=False)
    panels[-1].xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    panels[-1].set_xlabel('samples seen', fontsize=11, color=INK)
    _draw_legend(figure, run, marks)
    _draw_title(figure, run)
    return figure


def render(run):
    """Draw a run as a PNG.

    Parameters
    ----------
    run : hvd_dynamic.runreader.Run
        The run.

    Returns
    -------
    bytes
    """
    png = io.BytesIO()
    draw(run).savefig(png, format='png', dpi=DPI, facecolor='white')
    return png.getvalue()


def _marks(run):
    """List (samples, kind, label) of each event to be marked."""
    placed = [(run.samples_at(event), runtext.mark_kind(event), event) for event in run.events]
    return [(min(max(x, run.start), run.end), kind, '' if kind == 'resume' else runtext.size_text(event))
            for x, kind, event in placed if kind and x is not None]


def _style(axes):
    axes.patch.set_visible(False)      # the lines of the resizes run underneath, through all panels
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=10, length=3)
    axes.tick_params(which='minor', colors=GREY, length=2)
    axes.locator_params(axis='y', nbins=5)
    for side, spine in axes.spines.items():
        spine.set_visible(side == 'bottom')
        spine.set_color(GREY)


def _label(axes, text, colour=INK, x=-0.078):
    axes.set_ylabel(text, fontsize=11, color=colour, parse_math=False)
    axes.yaxis.set_label_coords(x, 0.5)


def _plain_ticks(axes):
    """Write ticks like 0.01, without a power of ten above the axis, where the picture has other things."""
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _not_recorded(axes):
    axes.text(0.5, 0.5, 'not recorded', transform=axes.transAxes, ha='center', va='center',
              color=GREY, fontsize=11)
    axes.yaxis.set_major_locator(ticker.NullLocator())


def _draw_world_size(axes, run):
    _label(axes, 'world size')
    sizes = run['world_size']
    if not np.isfinite(sizes).any():
        return _not_recorded(axes)
    parts = runseries.segments(sizes)
    edges = np.array([run.start] + [run['samples'][stop - 1] for _, stop in parts])
    values = np.array([sizes[start] for start, _ in parts])
    axes.stairs(values, edges, baseline=0, fill=True, color=MAIN, alpha=0.18, linewidth=0)
    axes.stairs(values, edges, baseline=None, color=MAIN, linewidth=1.8)
    axes.set_ylim(0, 1.3 * np.nanmax(values))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=4, integer=True))
    for value, low, high in zip(values, edges[:-1], edges[1:]):
        if np.isfinite(value):
            text = axes.annotate(f'{value:.0f}', ((low + high) / 2, value), xytext=(0, 3),
                                 textcoords='offset points', ha='center', va='bottom', fontsize=11,
                                 fontweight='bold', color=MAIN, path_effects=[HALO])
            room = np.ptp(axes.transData.transform([(low, 0), (high, 0)])[:, 0])
            if _extent(text).width + 8 > room:
                text.remove()


def _draw_lr(axes, run):
    _label(axes, 'learning rate')
    known = np.flatnonzero(np.isfinite(run['lr']))
    if not len(known):
        return _not_recorded(axes)
    lr, scale = run['lr'][known], run['lr_scale'][known]
    # An lr holds from the end of the update before it.
    before = np.where(known > 0, run['samples'][known - 1], run.start)
    edges = np.append(before, run['samples'][known[-1]])

    shown = lr
    if _scaled(run):
        base = np.divide(lr, scale, out=np.full_like(lr, np.nan), where=scale > 0)
        shown = np.append(lr, base[np.isfinite(base)])
        _steps(axes, edges, base, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)))
    _steps(axes, edges, lr, color=MAIN, linewidth=1.8)

    even = np.interp(np.linspace(run.start, run.end, 201), run['samples'][known], lr)
    low, high = np.percentile(even, [10, 90])
    if high > 100 * low > 0:      # a step decay over decades; a cosine that ends near zero stays linear
        axes.set_yscale('log')
        axes.set_ylim(max(shown[shown > 0].min(), low / 100) / 1.5, 1.5 * shown.max())
    else:
        axes.set_ylim(bottom=min(0, lr.min()))
    _plain_ticks(axes)


def _steps(axes, edges, values, **how):
    """Draw values that each hold from one edge to the next."""
    finite = np.isfinite(values)
    values, starts = values[finite], edges[:-1][finite]
    if len(values):
        chosen = runseries.extremes(values)
        axes.plot(np.append(starts[chosen], edges[-1]), np.append(values[chosen], values[-1]),
                  drawstyle='steps-post', **how)


def _scaled(run):
    scale = run['lr_scale'][np.isfinite(run['lr_scale'])]
    return bool((np.abs(scale - 1) > 1e-9).any())


def _draw_loss(axes, run):
    _label(axes, 'training loss', MAIN)
    known = np.isfinite(run['loss'])
    samples, loss = run['samples'][known], run['loss'][known]
    if not len(loss):
        _not_recorded(axes)
    else:
        smooth = runseries.rolling_mean(loss, max(5, len(loss) // 60))
        raw, drawn = runseries.extremes(loss), runseries.extremes(smooth)
        axes.plot(samples[raw], loss[raw], color=MAIN, alpha=0.25, linewidth=0.8)
        axes.plot(samples[drawn], smooth[drawn], color=MAIN, linewidth=2)
        # A single wild batch must not flatten the whole curve.
        low, high = np.percentile(loss, [0.5, 99.5])
        low, high = min(low, smooth.min()), max(high, smooth.max())
        if low > 0 and smooth.max() > 30 * smooth.min():
            axes.set_yscale('log')
            axes.set_ylim(low / 1.2, high * 1.2)
            _plain_ticks(axes)
        else:
            axes.set_ylim(min(0, low), high * 1.05 if high > 0 else 1)
    evaluations = run.evaluations()
    name = runtext.main_metric(evaluations)
    if name is not None:
        _draw_metric(axes.twinx(), run, name, [e for e in evaluations if name in e['metrics']])


def _draw_metric(axes, run, name, evaluations):
    _style(axes)
    axes.grid(False)
    _label(axes, f'evaluated {name}', SECOND, x=1.09)
    samples = np.array([run.samples_at(event) for event in evaluations])
    values = np.array([event['metrics'][name] for event in evaluations])
    drawn = runseries.extremes(values)
    axes.plot(samples[drawn], values[drawn], color=SECOND, linewidth=1.6,
              marker='o' if len(drawn) <= 60 else '', markersize=5.5, markeredgecolor='white',
              markeredgewidth=0.7, clip_on=False)
    spread = np.ptp(values) or abs(values[-1]) or 1
    axes.set_ylim(values.min() - 0.06 * spread, values.max() + 0.2 * spread)
    if runtext.is_share(name, values):
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{100 * value:g} %'))
        # No tick above 100 %, though the axis needs room there for the final value.
        ticks = [tick for tick in axes.get_yticks() if 0 <= tick <= 1 + 1e-9]
        axes.yaxis.set_major_locator(ticker.FixedLocator(ticks))
    axes.annotate(runtext.metric_text(name, values[-1]), (samples[-1], values[-1]), xytext=(-2, 7),
                  textcoords='offset points', va='bottom',
                  ha='right' if samples[-1] > (run.start + run.end) / 2 else 'left',
                  fontsize=11, fontweight='bold', color=SECOND, path_effects=[HALO])


def _draw_throughput(axes, run):
    _label(axes, 'samples / s')
    samples, rates = runseries.throughput(run)
    if not len(rates):
        return _not_recorded(axes)
    axes.fill_between(samples, rates, color=MAIN, alpha=0.18, linewidth=0)
    axes.plot(samples, rates, color=MAIN, linewidth=1.8)
    axes.set_ylim(0, 1.12 * rates.max())
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=''))


def _draw_noise(axes, run):
    """The gradient noise scale, and dashed the global batch: below it a larger world pays, far above it does not."""
    _label(axes, 'noise scale')
    known = np.isfinite(run['noise_scale']) & (run['noise_scale'] > 0)
    edges = np.append(run.start, run['samples'])
    _steps(axes, edges, run['global_batch'], color=GREY, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.plot(run['samples'][known], run['noise_scale'][known], color=MAIN, linewidth=1.8)
    axes.set_yscale('log')
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _draw_marks(lane, run, marks):
    lane.patch.set_visible(False)
    lane.set_ylim(0, 1)
    lane.yaxis.set_major_locator(ticker.NullLocator())
    for spine in lane.spines.values():
        spine.set_visible(False)
    lane.tick_params(bottom=False, labelbottom=False)
    figure = lane.figure
    through = blended_transform_factory(lane.transData, figure.transFigure)
    top = lane.transAxes.transform((0, 0.15))[1] / figure.bbox.height
    many = len(marks) > 25
    for x, kind, _ in marks:
        colour, marker, dashes, _ = MARKS[kind]
        figure.add_artist(Line2D([x, x], [BOTTOM, top], transform=through, color=colour, linestyle=dashes,
                                 linewidth=0.8 if many else 1.2, alpha=0.65 if many else 0.9, zorder=-1))
        lane.plot([x], [0.15], marker=marker, color=colour, markersize=6 if many else 8.5,
                  markeredgecolor='white', markeredgewidth=0.4, clip_on=False,
                  zorder=4 if kind == 'failure' else 3)
    # Two rows of labels; where those have no room either some are left out, and failures are the last to go.
    taken = {0.4: [], 0.7: []}
    for x, kind, label in sorted(marks, key=lambda mark: (mark[1] != 'failure', mark[0])):
        text = lane.text(x, 0, label, ha='center', va='bottom', fontsize=10, fontweight='bold',
                         color=MARKS[kind][0])
        box = _extent(text)
        for row, boxes in taken.items():
            if not any(box.x0 - 6 < high and low < box.x1 + 6 for low, high in boxes):
                text.set_y(row)
                boxes.append((box.x0, box.x1))
                break
        else:
            text.remove()


def _draw_epochs(lane, run):
    samples, epochs = runseries.epoch_starts(run)
    if not len(samples):
        return
    step = next(step for power in range(20) for step in (10 ** power, 2 * 10 ** power, 5 * 10 ** power)
                if len(epochs) <= 14 * step)
    shown = [(x, f'{epoch:.0f}') for x, epoch in zip(samples, epochs) if epoch % step == 0] or \
            [(samples[0], f'{epochs[0]:.0f}')]
    # Epochs are equally long in samples, but the first one may have begun before the file did.
    near, apart = 0.035 * (run.end - run.start), []
    for x, text in shown:
        if not apart or x - apart[-1][0] > near:
            apart.append((x, text))
    axis = lane.secondary_xaxis('top')
    axis.xaxis.set_major_locator(ticker.FixedLocator([x for x, _ in apart]))
    axis.xaxis.set_major_formatter(ticker.FixedFormatter([text for _, text in apart]))
    axis.tick_params(colors=GREY, labelcolor=INK, labelsize=10, length=3, pad=2)
    axis.spines['top'].set_color(GREY)
    # Beside the numbers: above them it would hit one of them or the title.
    lane.annotate('epoch', (0, 1), xycoords='axes fraction', xytext=(-16, 7), textcoords='offset points',
                  ha='right', fontsize=11, color=INK)


def _draw_legend(figure, run, marks):
    kinds = {kind for _, kind, _ in marks}
    handles = [Line2D([], [], color=colour, marker=marker, linestyle=dashes, linewidth=1.2, markersize=8,
                      label=text)
               for kind, (colour, marker, dashes, text) in MARKS.items() if kind in kinds]
    if _scaled(run):
        handles.append(Line2D([], [], color=GREY, linewidth=1.2, linestyle=(0, (4, 2)),
                              label='lr of the base schedule'))
    if np.isfinite(run['loss']).any():
        handles += [Line2D([], [], color=MAIN, alpha=0.35, linewidth=0.9, label='loss of an update'),
                    Line2D([], [], color=MAIN, linewidth=2, label='smoothed')]
    figure.legend(handles=handles, loc='lower center', bbox_to_anchor=(0.5, 0.005),
                  ncol=4 if len(handles) > 5 else 5, frameon=False, fontsize=10, labelcolor=INK,
                  handlelength=2.4, columnspacing=1.6)


def _draw_title(figure, run):
    # Names are the user's: a dollar sign in them is no formula.
    name = ''.join(c if c.isprintable() else ' ' for c in run.name)
    for y, text, how in ((0.983, name, {'fontsize': 17, 'fontweight': 'bold', 'color': INK}),
                         (0.956, runtext.headline(run), {'fontsize': 11.5, 'color': GREY})):
        line = figure.text(LEFT, y, text, va='top', parse_math=False, **how)
        while _extent(line).x1 > RIGHT * figure.bbox.width and len(text) > 1:
            text = text[:-1]
            line.set_text(text + '…')


def _extent(text):
    return text.get_window_extent(text.figure.canvas.get_renderer())
