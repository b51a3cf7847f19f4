"""The recipes bench: what is run, what is skipped, and what its report claims."""

import json
from dataclasses import replace

import numpy as np
import pytest
from training_pro.bench import fits, recipe
from training_pro.settings.parsing import training_settings
from training_pro.tests.conftest import ROOT

RESULT = recipe.results.Result(
    experiment="strength", arm="a", data="story", text="0123abcd", model="tiny", equal_by="tokens",
    budget=100.0, seed=1, outcome="finished", trained_tokens=100, passes=2.0, steps=5, rank=16, seconds=1.5,
    train_loss=2.5, validation_loss=3.0, general_loss=3.5, recall=0.25, control_recall=0.0, recall_4=None,
    recall_8=None, recall_16=None, recall_32=None, closed_book=None, questions=0, machine="x86_64, 1 threads",
    versions="torch 2",
)  # fmt: skip


def runs_of(arm: str, recalls: list[float | None], **changes: object) -> list[recipe.results.Result]:
    return [replace(RESULT, arm=arm, seed=seed, recall=r, **changes) for seed, r in enumerate(recalls, start=1)]


def settings_of(arm):
    return training_settings({**recipe.arms.BASE, **arm.changes, "name": "x", "data": [arm.data]})


def committed_results():
    return recipe.results.read_results(recipe.texts.FOLDER / "results.csv")


def test_every_arm_is_valid_and_no_two_runs_are_the_same():
    for experiment in recipe.arms.EXPERIMENTS.values():
        names = [arm.name for arm in experiment.arms]
        assert len(set(names)) == len(names) and set(experiment.small) <= set(names)
        assert all(settings_of(arm) for arm in experiment.arms)
    planned = recipe.arms.list_runs(list(recipe.arms.EXPERIMENTS), (1, 2, 3), small=False)
    assert len({(run.experiment, run.arm.name, run.equal_by, run.seed) for run in planned}) == len(planned) >= 250
    seeds = [run.seed for run in recipe.arms.list_runs(["slicing", "law"], (1, 2, 3), small=True)]
    assert seeds == sorted(seeds)  # every arm has a first seed before one has a second


def test_results_are_read_as_they_were_written_and_a_row_cut_off_by_a_kill_harms_no_other(tmp_path):
    file = tmp_path / "new" / "results.csv"
    made = [RESULT, replace(RESULT, seed=2, outcome="diverged", train_loss=None, arm='comma, "quote"')]
    for result in made:
        recipe.results.append_result(file, result)
    assert recipe.results.read_results(file) == made
    whole = "".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:2])
    for length in range(1, len(whole.splitlines()[1]), 7):
        file.write_text(whole + whole.splitlines()[1][:length], encoding="utf-8")
        recipe.results.append_result(file, replace(RESULT, seed=2))
        assert [result.seed for result in recipe.results.read_results(file)] == [1, 2], length
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"results\.csv has no column"):
        recipe.results.read_results(file)


def test_the_key_changes_with_all_that_makes_another_run():
    changes = {"experiment": "x", "arm": "x", "data": "x", "text": "x", "model": "x", "equal_by": "x", "seed": 9}
    assert len({RESULT.key, *(replace(RESULT, **{k: v}).key for k, v in changes.items())}) == len(changes) + 1
    assert replace(RESULT, seconds=99.0, machine="other").key == RESULT.key


def answer_of(made: list[recipe.results.Result]) -> str:
    """What the page says of the one table of these runs."""
    return recipe.report.answer("recall", {arm: [run for run in made if run.arm == arm] for arm in "abc"})


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
    chance = (
        recipe.comparison.CHANCE + 3 * (recipe.comparison.CHANCE / tables) ** 0.5
    )  # three standard errors of the simulation
    real = recipe.report.real_tables(committed_results())
    assert len(real) >= 10
    for name, figures in real.items():
        assert recipe.comparison.false_claims(figures, tables, rng) <= chance, name
    noise = recipe.comparison.pool_residuals([recall for name, (recall, _) in real.items() if "story" in name])
    for setups in (2, 5, 15):
        false, _ = recipe.comparison.found(noise, setups, 3, 0.15, tables, rng)
        assert false <= chance, setups
    assert recipe.comparison.found(noise, 2, 12, 0.15, tables, rng)[1] >= 0.8


def test_the_report_compares_only_enough_runs_of_the_same_text_and_budget():
    for change in ({"text": "ffff0000"}, {"budget": 200.0}, {"model": "other"}, {"equal_by": "passes"}):
        text = recipe.report.page([*runs_of("a", [0.9] * 3), *runs_of("b", [0.1] * 3, **change)])
        assert "is better than" not in text.partition("## ")[2], change
    text = recipe.report.page([*runs_of("a", [0.9, 0.9]), *runs_of("b", [0.1, 0.1])])
    assert "is better than" not in text.partition("## ")[2] and "There is no answer yet" in text
    diverged = [*runs_of("a", [0.5] * 3), *runs_of("a", [None] * 2, outcome="diverged")]
    assert "| a | 3, 2 diverged |" in recipe.report.page(diverged)
    assert "| 90.0% |" in recipe.report.page(runs_of("a", [0.9]))
    assert "| 85.0% (80.0-90.0) |" in recipe.report.page(runs_of("a", [0.9, 0.8]))


def test_the_law_is_found_again_with_its_error():
    true = recipe.report.Law(0.66, 5.5, 4.6, 0.0)
    law = recipe.report.fit_law([(x, true.recall(x)) for x in (1, 2, 4, 8, 16)])
    assert law is not None
    assert law == pytest.approx(true, rel=0.05, abs=0.005)
    assert recipe.report.fit_law([(1, 0.1), (2, 0.2), (2, 0.3), (4, 0.4)]) is None


@pytest.mark.long
def test_the_plots_are_drawn_to_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    passes = {"experiment": "law", "equal_by": "passes"}
    law = [run for n in (1, 2, 4, 8) for run in runs_of(f"passes {n}", [n / 20] * 3, passes=float(n), **passes)]
    made = [*runs_of("a", [0.5, 0.6, 0.6]), *law]
    files = recipe.report.draw([*made, *runs_of("single", [0.1], text="other")], tmp_path / "new")
    first = {file.name: file.read_bytes() for file in files}
    assert list(first) == ["strength.svg", "law.svg"]
    assert {file.name: file.read_bytes() for file in recipe.report.draw(made, tmp_path / "new")} == first
    assert all(f"](plots/{name})" in recipe.report.page(made, "plots") for name in first)


def test_no_text_is_both_trained_on_and_control():
    for name in ("story", "notes", "chats"):
        data = recipe.texts.read_data(name, 10**6)
        train, control = data.files[data.measured], data.files[data.control]
        sections = control.splitlines() if name == "chats" else control.split(recipe.texts.HARD_CUT)
        assert len(sections) >= 4
        assert not any(section in train for section in sections)


def test_a_question_that_is_asked_is_not_trained_on_and_its_note_is():
    data = recipe.texts.read_data("notes+questions", 0)
    assert len(data.questions) == 40 and data.digest == recipe.texts.read_data("notes", 0).digest
    for question in data.questions:
        assert question.text not in data.files["questions.jsonl"]
        assert recipe.texts.is_exact(data.files["train.txt"], question.answer)


def test_an_answer_counts_only_word_for_word():
    rights = (("It has 312 inhabitants.", "312"), ("old BERTRAM, of course", "Old Bertram"))
    wrongs = (("It has 3120.", "312"), ("Bertram the old", "Old Bertram"), ("", "four"))
    assert [recipe.texts.is_exact(*each) for each in (*rights, *wrongs)] == [True] * 2 + [False] * 3


def test_the_pages_are_those_of_the_results():
    sizes = json.loads((recipe.texts.FOLDER / "results-sizes.json").read_text(encoding="utf-8"))
    page = recipe.report.page(committed_results(), sizes=sizes)
    written = (ROOT / "docs" / "what-works.md").read_text(encoding="utf-8")
    assert page == written, "run: python3 bench/recipes.py report"
    readme = fits.PAGE.read_text(encoding="utf-8")
    assert readme == fits.with_table(readme), "run: python3 bench/fits.py --write"


EXPECTED = {
    ("law", "0 times"): (0, True),
    ("targets", "MLP"): (None, False),
    ("facts", "notes and questions about others"): (16, False),
}
"""Arms of each kind of data, with their rank, and whether recall is measured with contexts of other lengths."""


@pytest.mark.long
def test_runs_of_every_kind_of_data_are_made_and_measured(tmp_path, tiny):
    lab = recipe.runs.Lab.open(tiny, tmp_path / "lab", recipe.runs.Size(2400, 900, 1.0), None)
    for (name, arm_name), (rank, has_contexts) in EXPECTED.items():
        experiment = recipe.arms.EXPERIMENTS[name]
        arm = next(arm for arm in experiment.arms if arm.name == arm_name)
        run = recipe.arms.Run(name, arm, experiment.equal_by[0], 1)
        result = lab.make(run)
        assert (result.key, result.outcome) == (lab.key(run), "finished")
        assert rank is None or result.rank == rank
        assert (result.recall_4 is not None) == has_contexts
        assert (result.closed_book is not None) == (name == "facts")
        if arm.passes is None:
            assert abs(result.trained_tokens - 900) <= result.trained_tokens / result.steps  # one step
    assert replace(lab.make(run), seconds=0) == replace(result, seconds=0)
    slicing = [recipe.arms.Run("slicing", arm, "passes", 1) for arm in recipe.arms.EXPERIMENTS["slicing"].arms]
    digests = {lab.examples(run).digest() for run in slicing}
    assert len(digests) == len(slicing), "two arms train on the same examples"
    large = recipe.arms.Run("batches", recipe.arms.Arm("batch 64", {"batch_size": 64}), "tokens", 1)
    assert "needs 64 examples, and the data have" in lab.refusal(large)
