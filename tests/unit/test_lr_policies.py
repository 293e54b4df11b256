"""The benchmark of policies: what is run in which order, how results are kept, and how they are summed up."""
import pytest

from benchmarks import lr_policies
from benchmarks.lr_parts.plan import DESIGN, STATIC, Run, plan
from benchmarks.lr_parts.summary import tables


def result(run, final=0.9, **fields):
    return {**vars(run), 'lr': 0.0125, 'epochs': 2, 'metrics': [0.5, final], 'diverged': False, 'growth': [1.2],
            'shrink': [0.8], 'cpu_seconds': 1.0, **fields}


def test_runs_are_ordered_seed_by_seed_over_all_tasks_and_none_is_there_twice():
    runs = plan(list(DESIGN))
    assert len(set(runs)) == len(runs)
    seeds = [run.seed for run in runs]
    assert seeds == sorted(seeds) and set(seeds) == set(range(10))
    assert {run.task for run in runs if run.seed == 4} == set(DESIGN)
    assert {run.task for run in runs if run.seed == 5} == {'digits', 'digits-bn'}


def test_every_run_has_its_static_run():
    runs = set(plan(list(DESIGN)))
    assert all(Run(run.task, STATIC, '', run.factor, run.seed) in runs for run in runs)


def test_quick_plan_covers_all_tasks_with_one_seed_and_policies_and_seeds_can_be_chosen():
    runs = plan(list(DESIGN), quick=True)
    assert {run.task for run in runs} == set(DESIGN) and {run.seed for run in runs} == {0}
    runs = plan(['digits'], names=['smooth'], seeds=2)
    assert {run.policy for run in runs} == {STATIC, 'smooth'} and {run.seed for run in runs} == {0, 1}


def test_results_are_read_back_also_if_the_last_line_was_cut_off(tmp_path):
    runs = plan(['digits'], seeds=1)[:3]
    path = tmp_path / 'digits.jsonl'
    lr_policies.append(path, result(runs[0]))
    with open(path, 'a') as file:
        file.write('{"task":"digits","poli')
    lr_policies.append(path, result(runs[1]))
    assert lr_policies.read(tmp_path, ['digits']) == {run: result(run) for run in runs[:2]}
    assert all(len(line) < 400 for line in path.read_text().splitlines())


def test_results_of_another_learning_rate_are_refused(tmp_path):
    run = plan(['digits'], seeds=1)[0]
    lr_policies.append(tmp_path / 'digits.jsonl', result(run, lr=0.5, epochs=16))
    with pytest.raises(SystemExit, match='has runs with lr 0.5 and 16 epochs, but the task has lr 0.0125 and 16 epochs now: '
                                         'move the file away'):
        lr_policies.do_all([run], tmp_path, 1)


def test_tables_compare_policies_on_traces_that_all_have_and_count_a_run_given_up_as_nothing():
    static = [result(Run('digits', STATIC, '', 1, seed), 0.9, growth=[], shrink=[]) for seed in (0, 1)]
    smooth = [result(Run('digits', 'smooth', trace, 1, seed), 0.91) for seed in (0, 1) for trace in ('grow-shrink', 'spot')]
    linear = [result(Run('digits', 'linear', 'grow-shrink', 1, seed), 0.88 + 0.02 * seed, growth=[3.0 + seed])
              for seed in (0, 1)]
    linear[0].update(metrics=[0.5], diverged=True, growth=[None])
    text = tables(static + smooth + linear)
    assert '1 x the reference learning rate; grow-shrink\n' in text
    rows = {line.split('|')[1].strip(' `'): [cell.strip() for cell in line.split('|')[2:-1]]
            for line in text.split('Gap to static')[0].splitlines() if line.startswith('| `')}
    assert rows['smooth'] == ['2', '91.00 ± 0.00', '91.00', '+1.00', '0', '1.20', '0.80', '2 (2 of 2)']
    assert rows['linear'] == ['2', '45.00 ± 45.00', '0.00', '-45.00', '1', 'inf', '0.80', '– (1 of 2)']
    assert '| `smooth` | +1.00 | +1.00 | +1.00 |' in text and '| `linear` | -45.00 ✖1 |  | -45.00 ✖1 |' in text
