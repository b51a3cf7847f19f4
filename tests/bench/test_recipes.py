"""The recipes bench: what is run, what is skipped, and what its report claims."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from training_pro.bench.recipe import arms, comparison, report, results, runs, texts
from training_pro.core.version import ROOT
from training_pro.settings.parsing import training_settings

RESULT = results.Result(
    experiment="strength", arm="a", data="story", text="0123abcd", model="tiny", equal_by="tokens",
    budget=100.0, seed=1, outcome="finished", trained_tokens=100, passes=2.0, steps=5, rank=16, seconds=1.5,
    train_loss=2.5, validation_loss=3.0, general_loss=3.5, recall=0.25, control_recall=0.0, recall_4=None,
    recall_8=None, recall_16=None, recall_32=None, closed_book=None, questions=0, machine="x86_64, 1 threads",
    versions="torch 2",
)  # fmt: skip


def runs_of(arm: str, recalls: list[float | None], **changes: object) -> list[results.Result]:
    return [replace(RESULT, arm=arm, seed=seed, recall=r, **changes) for seed, r in enumerate(recalls, start=1)]


@pytest.mark.parametrize("experiment", arms.EXPERIMENTS.values(), ids=lambda each: each.name)
def test_every_arm_is_valid_and_has_a_name_of_its_own(experiment):
    names = [arm.name for arm in experiment.arms]
    assert len(set(names)) == len(names)
    assert set(experiment.small) <= set(names)
    for arm in experiment.arms:
        training_settings({**arms.BASE, **arm.changes, "name": "x", "data": ["x.txt"]})


def test_there_are_enough_runs_behind_the_page_and_no_two_are_the_same():
    runs = arms.list_runs(list(arms.EXPERIMENTS), (1, 2, 3), small=False)
    assert len(runs) >= 250
    assert len({(run.experiment, run.arm.name, run.equal_by, run.seed) for run in runs}) == len(runs)


def test_every_arm_has_a_first_seed_before_one_has_a_second():
    seeds = [run.seed for run in arms.list_runs(["slicing", "law"], (1, 2, 3), small=True)]
    assert seeds == sorted(seeds)


def test_results_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "new" / "results.csv"
    made = [RESULT, replace(RESULT, seed=2, outcome="diverged", train_loss=None, arm='comma, "quote"')]
    for result in made:
        results.append_result(file, result)
    assert results.read_results(file) == made


def test_a_row_cut_off_by_a_kill_is_run_again_and_harms_no_other(tmp_path):
    file = tmp_path / "results.csv"
    results.append_result(file, RESULT)
    whole = file.read_text(encoding="utf-8")
    row = whole.splitlines()[1]
    for length in range(1, len(row)):
        file.write_text(whole + row[:length], encoding="utf-8")
        results.append_result(file, replace(RESULT, seed=2))
        assert [result.seed for result in results.read_results(file)] == [1, 2], row[:length]


def test_the_key_changes_with_all_that_makes_another_run():
    changes = {"experiment": "x", "arm": "x", "data": "x", "text": "x", "model": "x", "equal_by": "x", "seed": 9}
    assert len({RESULT.key, *(replace(RESULT, **{k: v}).key for k, v in changes.items())}) == len(changes) + 1
    assert replace(RESULT, seconds=99.0, machine="other").key == RESULT.key


def test_a_file_of_other_columns_is_refused(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"other\.csv has no column"):
        results.read_results(file)


def answer_of(made: list[results.Result]) -> str:
    """What the page says of the one table of these runs."""
    return report.answer("recall", {arm: [run for run in made if run.arm == arm] for arm in "abc"})


def test_a_setup_that_learned_more_is_better_only_if_it_forgot_no_more():
    high, low = [0.8, 0.81, 0.82], [0.1, 0.11, 0.1]
    plain = [*runs_of("a", high), *runs_of("b", [0.79, 0.8, 0.83]), *runs_of("c", low)]
    assert "**a** is better than **c**. **b** is better than **c**." in answer_of(plain)
    traded = [*runs_of("a", high, general_loss=5.0), *runs_of("c", low)]
    assert "No setup is shown to be better than another (1 pair)." in answer_of(traded)
    assert "In 1 of 1 pair, one setup learned more but also forgot more." in answer_of(traded)
    assert "**c** is better than **a**" in answer_of([*runs_of("a", low, general_loss=5.0), *runs_of("c", low)])


def test_runs_with_the_same_seed_are_paired():
    apart = [*runs_of("a", [0.1, 0.4, 0.7]), *runs_of("b", [0.2, 0.51, 0.8])]
    assert "**b** is better than **a**" in answer_of(apart)
    assert "**b** is better" not in answer_of([*apart[:3], *runs_of("b", [0.8, 0.51, 0.2])])


def test_the_rule_claims_a_difference_in_at_most_five_percent_of_empty_tables():
    """Each real table with its means made equal, and tables whose noise is drawn from all real runs."""
    rng, tables = np.random.default_rng(0), 1000
    chance = comparison.CHANCE + 3 * (comparison.CHANCE / tables) ** 0.5  # three standard errors of the simulation
    real = report.real_tables(results.read_results(texts.FOLDER / "results.csv"))
    assert len(real) >= 10
    for name, figures in real.items():
        assert comparison.false_claims(figures, tables, rng) <= chance, name
    noise = comparison.pool_residuals([recall for name, (recall, _) in real.items() if "story" in name])
    for setups in (2, 5, 15):
        false, _ = comparison.found(noise, setups, 3, 0.15, tables, rng)
        assert false <= chance, setups
    assert comparison.found(noise, 2, 12, 0.15, tables, rng)[1] >= 0.8


def test_the_quantiles_are_those_of_student():
    for freedom, chance, value in ((2, 0.05, 4.303), (8, 0.05, 2.306), (4, 0.005, 5.598), (28, 0.001, 3.674)):
        assert comparison.student_quantile(freedom, chance) == pytest.approx(value, abs=2e-3)


def test_the_report_claims_nothing_from_two_runs():
    text = report.page([*runs_of("a", [0.9, 0.9]), *runs_of("b", [0.1, 0.1])])
    assert "is better than" not in text.partition("## ")[2]
    assert "There is no answer yet" in text


def test_runs_of_other_texts_or_budgets_are_not_compared():
    for change in ({"text": "ffff0000"}, {"budget": 200.0}, {"model": "other"}, {"equal_by": "passes"}):
        text = report.page([*runs_of("a", [0.9] * 3), *runs_of("b", [0.1] * 3, **change)])
        assert "is better than" not in text.partition("## ")[2], change


def test_diverged_runs_are_counted_and_not_averaged():
    made = [*runs_of("a", [0.5] * 3), *runs_of("a", [None] * 2, outcome="diverged")]
    assert "| a | 3, 2 diverged |" in report.page(made)


def test_the_law_is_found_again_with_its_error():
    true = report.Law(0.66, 5.5, 4.6, 0.0)
    law = report.fit_law([(x, true.recall(x)) for x in (1, 2, 4, 8, 16)])
    assert law is not None
    assert law == pytest.approx(true, rel=0.05, abs=0.005)
    assert report.fit_law([(1, 0.1), (2, 0.2), (2, 0.3), (4, 0.4)]) is None


def test_the_untrained_model_stands_in_every_table_and_is_not_compared():
    untrained = replace(
        RESULT, experiment="law", arm="0 times", budget=0.0, passes=0.0, equal_by="passes", recall=0.01
    )
    text = report.page([untrained, *runs_of("a", [0.5] * 3), *runs_of("b", [0.5] * 3)])
    assert "| untrained | 1 | 100 | 5 | 1.0% |" in text
    assert "The setups have the same results, seed by seed (**a** and **b**)." in text


def test_the_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    law = [
        run
        for n in (1, 2, 4, 8)
        for run in runs_of(f"passes {n}", [n / 20] * 3, experiment="law", passes=float(n), equal_by="passes")
    ]
    made = [*runs_of("a", [0.5, 0.6, 0.6]), *law]
    files = report.draw([*made, *runs_of("single", [0.1], text="other")], tmp_path / "new")
    assert [file.name for file in files] == ["strength.svg", "law.svg"]
    first = [file.read_bytes() for file in files]
    report.draw(made, tmp_path / "new")
    assert [file.read_bytes() for file in files] == first
    text = report.page(made, "plots")
    assert all(f"](plots/{file.name})" in text for file in files)
    assert all(file.read_text(encoding="utf-8").startswith("<?xml") for file in files)


def test_no_text_is_both_trained_on_and_control():
    for name in ("story", "notes", "chats"):
        data = texts.read_data(name, 10**6)
        train, control = data.files[data.measured], data.files[data.control]
        sections = control.splitlines() if name == "chats" else control.split(texts.HARD_CUT)
        assert len(sections) >= 4
        assert not any(section in train for section in sections)


def test_the_data_are_as_long_as_promised():
    story = (texts.FOLDER / "story.txt").read_text(encoding="utf-8")
    assert 40_000 <= len(story) <= 60_000
    paragraphs = [paragraph for paragraph in story.split("\n\n") if len(paragraph) > 120]
    assert len(set(paragraphs)) == len(paragraphs)
    assert len((texts.FOLDER / "chats.jsonl").read_text(encoding="utf-8").splitlines()) >= 60


def test_a_question_that_is_asked_is_not_trained_on_and_its_note_is():
    data = texts.read_data("notes+questions", 0)
    assert len(data.questions) == 40
    for question in data.questions:
        assert question.text not in data.files["questions.jsonl"]
        assert texts.is_exact(data.files["train.txt"], question.answer)


@pytest.mark.parametrize(
    ("reply", "answer", "expected"),
    [
        ("It has 312 inhabitants.", "312", True),
        ("It has 3120.", "312", False),
        ("old BERTRAM, of course", "Old Bertram", True),
        ("Bertram the old", "Old Bertram", False),
        ("", "four", False),
    ],
)
def test_an_answer_counts_only_word_for_word(reply, answer, expected):
    assert texts.is_exact(reply, answer) is expected


def test_a_text_that_is_too_short_is_refused(tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("One paragraph.\n\nAnother one.", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"short\.txt has 0 sections of 700 characters"):
        texts.read_data("story", 1000, file)


def test_notes_with_questions_and_the_untrained_model_are_compared_with_notes():
    assert texts.read_data("notes", 0).digest == texts.read_data("notes+questions", 0).digest
    facts = {"experiment": "facts", "data": "notes"}
    made = [
        *runs_of("untrained", [0.0] * 3, **facts, closed_book=0.02, budget=0.0, passes=0.0),
        *runs_of("notes", [0.5] * 3, **facts, closed_book=0.2),
        *runs_of("both", [0.5] * 3, experiment="facts", data="notes+questions", closed_book=0.4),
    ]
    assert "**both** is better than **notes**." in report.page(made)
    assert len(report.grouped(made)) == 1


def test_the_setups_stand_in_the_order_of_their_experiment():
    made = [
        run
        for arm in ("DEMENTOR 2, 64", "gone", "overlap, 64", "blocks, 64")
        for run in runs_of(arm, [0.5], experiment="slicing")
    ]
    ((_, by_arm),) = report.grouped(made).items()
    assert list(by_arm) == ["blocks, 64", "overlap, 64", "DEMENTOR 2, 64", "gone"]


def test_figures_are_means_with_their_range_if_there_is_one():
    assert "| 90.0% |" in report.page(runs_of("a", [0.9]))
    assert "| 85.0% (80.0-90.0) |" in report.page(runs_of("a", [0.9, 0.8]))


def test_the_page_is_the_one_of_the_results(tmp_path):
    page, committed = tmp_path / "page.md", ROOT / "docs" / "what-works.md"
    made = results.read_results(texts.FOLDER / "results.csv")
    sizes = json.loads((texts.FOLDER / "results-sizes.json").read_text(encoding="utf-8"))
    page.write_text(report.page(made, sizes=sizes), encoding="utf-8", newline="\n")
    assert page.read_bytes() == committed.read_bytes(), "run: python3 bench/recipes.py report"


def test_setups_with_the_same_settings_share_all_their_runs():
    made = results.read_results(texts.FOLDER / "results.csv")
    seeds = defaultdict(dict)
    for experiment in arms.EXPERIMENTS.values():
        for arm in experiment.arms:
            if arm.passes is None and not arm.equal_parameters and "tokens" in experiment.equal_by:
                settings = training_settings({**arms.BASE, **arm.changes, "name": "x", "data": [arm.data]})
                runs = [run for run in made if (run.experiment, run.arm) == (experiment.name, arm.name)]
                own = {run.seed for run in runs if run.equal_by == "tokens"}
                seeds[settings][experiment.name, arm.name] = own
    assert max(map(len, seeds.values())) > 4
    assert [each for each in seeds.values() if len(set(map(frozenset, each.values()))) > 1] == []


def test_an_unknown_experiment_is_refused():
    command = [sys.executable, str(ROOT / "bench" / "recipes.py"), "run", "--only", "laws"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "There is no experiment laws. Choose from: slicing, rates" in done.stderr


@pytest.mark.long
def test_runs_of_every_kind_of_data_are_made_and_measured(tmp_path):
    from training_pro.hosts.tiny import make_tiny

    model = make_tiny(tmp_path / "tiny-model")
    lab = runs.Lab.open(model, tmp_path / "lab", runs.Size(2400, 900, 1.0), None)
    expected = {
        ("law", "0 times"): (0, True),
        ("law", "2 times"): (16, True),
        ("targets", "MLP"): (None, False),
        ("slicing", "DEMENTOR 2, 64"): (16, False),
        ("facts", "notes and questions about others"): (16, False),
        ("packing", "packing on"): (16, False),
    }
    for (experiment, name), (rank, has_contexts) in expected.items():
        arm = next(arm for arm in arms.EXPERIMENTS[experiment].arms if arm.name == name)
        run = arms.Run(experiment, arm, arms.EXPERIMENTS[experiment].equal_by[0], 1)
        result = lab.make(run)
        assert result.key == lab.key(run)
        assert result.outcome == "finished"
        assert rank is None or result.rank == rank
        assert result.validation_loss > 1
        assert (result.recall_4 is not None) == has_contexts
        assert (result.closed_book is not None) == (experiment == "facts")
        if arm.passes is None:
            assert abs(result.trained_tokens - 900) <= result.trained_tokens / result.steps, name  # one step
    slicing = [arms.Run("slicing", arm, "passes", 1) for arm in arms.EXPERIMENTS["slicing"].arms]
    digests = {lab.examples(run).digest() for run in slicing}
    assert len(digests) == len(slicing), "two arms train on the same examples"
    assert "needs 64 examples, and the data have" in lab.refusal(
        arms.Run("batches", arms.Arm("batch 64", {"batch_size": 64}), "tokens", 1)
    )
    same = [
        lab.recipe(arms.Run(name, arm, "tokens", 1))
        for name, wanted in (("slicing", "blocks, 128"), ("rates", "story, 3e-3"), ("targets", "all-linear"))
        for arm in arms.EXPERIMENTS[name].arms
        if arm.name == wanted
    ]
    assert len(same) == 3 and len(set(same)) == 1
    assert lab.recipe(run) != lab.recipe(run._replace(seed=2))
    assert lab.data_sizes("story")["validation tokens"] > 0
    again = lab.make(run)
    assert replace(again, seconds=0) == replace(result, seconds=0)
