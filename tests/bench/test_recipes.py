"""The recipes bench: what is run, in what order, what is read from it, and what its page may claim."""

import ast
import csv
import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from training_pro.bench import fits, recipe
from training_pro.settings.parsing import training_settings
from training_pro.tests.conftest import ROOT

QUESTIONS, UNTRAINED = recipe.questions.QUESTIONS, recipe.questions.UNTRAINED
RESULT = recipe.results.Result(
    text="lane", digest=recipe.texts.digest("lane"), model="tiny", recipe="{}", rate=8e-4, tokens=36_000, seed=1,
    outcome="finished", examples=115, trained_tokens=36_000, passes=2.8, steps=82, rank=32, seconds=99.5,
    seconds_measured=20.5, train_loss=2.5, recall=0.25, control_recall=0.01, inside_recall=0.2, general_loss=3.8,
    unseen_loss=3.5, copied=0.02, closed_book=None, machine="x86_64, 1 thread", versions="torch 2",
)  # fmt: skip
MEASURED = re.compile(r"\b(our|we)\b[^.]{0,20}\b(runs|measure\w*)\b", re.IGNORECASE)
"""A sentence that speaks of what this project measured."""
COMPARED = re.compile(
    r"\b(learn|memorize|forget|remember)\w* (more|less|better|worse)\b|\bbest (rate|schedule|rank)\b"
)
SAYING = (
    "README.md", "docs/guide.md", "docs/coming-from.md", "docs/settings.md", "presets/*.json",
    "settings/*.py", "data/report/*.py", "engine/checks.py", "records/report/verdict.py",
)  # fmt: skip
"""Where sentences could claim what only runs can bear. The tables of docs/benchmarks.md are about speed."""
COMMON = (
    "after before does ever every have into long much more must name other people than that their them there they "
    "this time what when where which whom with your place first last large most others were from"
)
"""Words that a question may share with its note."""


def result_of(run, **figures):
    return replace(RESULT, **run.key("tiny")._asdict(), **figures)


def made_runs(question, recall_of, seeds=6, best=1):
    """Runs of a question whose recall follows a rule, and where unseen text is best at the rate in this place."""
    made = [
        result_of(recipe.questions.Run(text, UNTRAINED, 0.0, 1), recall=0.0, general_loss=3.7, unseen_loss=4.0)
        for text in question.texts
    ]
    rated = [(way, place, rate) for way in question.ways for place, rate in enumerate(question.rates_of(way))]
    for text, (way, place, rate), seed in product(question.texts, rated, range(1, seeds + 1)):
        run = recipe.questions.Run(text, way, rate, seed)
        figures = {"recall": recall_of(way.name, place, text, seed), "general_loss": 3.7 + 0.2 * place}
        figures["inside_recall"] = 0.2 + noise("inside", way.name, place, text, seed)
        made.append(result_of(run, unseen_loss=3.6 + 0.1 * abs(place - best), **figures))
    return made


def noise(*key):
    """A small number that is always the same for a way, rate, text and seed."""
    return np.random.default_rng([sum(map(ord, str(part))) for part in key]).normal(0, 0.01)


def points_of(*figures):
    """The frontier of (rise, recall)."""
    results = [replace(RESULT, recall=recall, general_loss=3.7 + rise) for rise, recall in figures]
    rates = (0.0, *recipe.questions.RATES)
    return [recipe.differences.Point(rates[n], figures[n][0], each) for n, each in enumerate(results)]


def test_every_way_is_valid_and_no_run_is_planned_twice():
    planned = recipe.questions.plan_runs(list(QUESTIONS), 3)
    for question in QUESTIONS.values():
        assert len({way.name for way in question.ways}) == len(question.ways)
        assert len({(way.recipe, way.tokens) for way in question.ways}) == len(question.ways)
        for way in question.ways:
            values = {**recipe.questions.BASE, **way.changes, "name": "x", "data": ["x.txt"]}
            assert training_settings(values)
            assert values["batch_size"] * values["cutoff"] == 512  # equal tokens are equal steps
    assert len({run.key("m") for run in planned}) == len(planned) > 600
    named = sum(len(q.ways) * len(q.rates) * len(q.texts) * 3 for q in QUESTIONS.values())
    assert len(planned) < named - 100, "ways of several questions share their runs"


def test_every_question_has_a_first_run_before_one_has_a_second_seed():
    planned = recipe.questions.plan_runs(list(QUESTIONS), 3)
    assert [run.way.tokens for run in planned[:4]] == [0] * 4 and planned[4].way.tokens
    first = [run for run in planned if run.seed == 1 and run.rate]
    assert planned[4 : 4 + len(first)] == first
    required = [name for name, question in QUESTIONS.items() if question.required]
    keys = {run.key("") for run in recipe.questions.plan_runs(required, 3)}
    rest = [run.key("") not in keys for run in planned[4 + len(first) :]]
    assert rest == sorted(rest)


def test_results_are_read_as_they_were_written_and_a_row_cut_off_by_a_kill_harms_no_other(tmp_path):
    file = tmp_path / "new" / "results.csv"
    made = [RESULT, replace(RESULT, seed=2, outcome="diverged", train_loss=None, recipe='{"rank": 8, "a": "b"}')]
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
    changes = {"text": "notes", "digest": "x", "model": "x", "recipe": "x", "rate": 1.0, "tokens": 1, "seed": 9}
    assert len({RESULT.key, *(replace(RESULT, **{k: v}).key for k, v in changes.items())}) == len(changes) + 1
    assert replace(RESULT, seconds=99.0, machine="other").key == RESULT.key


def test_unseen_text_is_not_trained_on_and_every_text_has_a_source():
    sources = json.loads((recipe.texts.FOLDER / "sources.json").read_text(encoding="utf-8"))
    for name in recipe.texts.TEXTS:
        text = recipe.texts.read_text(name)
        unseen = text.files[text.unseen]
        trained = "\n".join(text.files[file] for file in text.trained)
        parts = unseen.splitlines() if text.is_rows else re.split(r"\n{2,}", unseen)
        assert not any(part in trained for part in parts if len(part) > 60)
        assert 35_000 < len(trained) < 60_000 and len(unseen) > 5_000
        assert {"what", "from", "licence"} <= sources[name].keys()
    for name in recipe.texts.AUTHORS:
        whole, eighth = (recipe.texts.read_text(name, share).files["trained.txt"] for share in (1.0, 0.125))
        assert whole.startswith(eighth) and 0.1 < len(eighth) / len(whole) <= 0.125


def test_passages_are_in_the_text_and_begin_where_no_example_does(tmp_path, tiny):
    lab = recipe.runs.Lab.open(tiny, tmp_path)
    text = recipe.texts.read_text("lane")
    picked = recipe.texts.pick_text_passages(text, lab.tokenizer, 24)
    assert [len(part) for part in picked] == [24, 12]
    starts = set()
    for passage in picked.trained:
        words = lab.tokenizer.decode(passage.example.ids.tolist())
        assert words in text.files["trained.txt"]
        starts.add(text.files["trained.txt"].index(words))
    assert len(starts) == 24
    for start in starts:  # the word before is the first of a sentence
        before = text.files["trained.txt"][:start].rstrip()
        assert re.search(r"(^|[.!?\n][\"']?\s*)[\"']?[A-Z]\w*$", before[-40:]), before[-40:]


def test_a_question_about_a_note_has_none_of_its_words_and_one_answer():
    rows = [json.loads(line) for line in (recipe.texts.FOLDER / "notes.jsonl").read_text("utf-8").splitlines()]
    noted = [row for row in rows if "asked" in row]
    assert len(noted) >= 120
    for row in noted:
        # Names, and terms in quotes, have to be the same.
        asked = re.findall(r"[a-z]{4,}", re.sub(r'"[^"]*"|\b[A-Z][\w\']*', "", row["asked"]))
        shared = set(asked) & set(re.findall(r"[a-z]+", row["note"].lower()))
        assert shared <= set(COMMON.split()), (row["asked"], shared)
        assert recipe.texts.is_exact(row["note"], row["answer"])
        assert not recipe.texts.is_exact(row["asked"], row["answer"])


def test_an_asked_question_is_trained_on_in_no_form_and_others_are_only_about_other_notes():
    asked = {question.text for question in recipe.texts.read_text("notes").questions}
    answers = {question.answer for question in recipe.texts.read_text("notes").questions}
    for form in ("questions", "text and questions", "text and questions about others"):
        text = recipe.texts.read_text("notes", 1.0, form)
        assert {question.text for question in text.questions} == asked
        assert not any(json.dumps(each)[1:-1] in text.files["questions.jsonl"] for each in asked)
    trained = [json.loads(line)["messages"][1]["content"] for line in text.files["questions.jsonl"].splitlines()]
    assert len(trained) == len(asked) and len(answers & set(trained)) <= 2


def test_an_answer_counts_only_word_for_word():
    rights = (("It has 312 inhabitants.", "312"), ("old BERTRAM, of course", "Old Bertram"))
    wrongs = (("It has 3120.", "312"), ("Bertram the old", "Old Bertram"), ("", "four"))
    assert [recipe.texts.is_exact(*each) for each in (*rights, *wrongs)] == [True] * 2 + [False] * 3


def test_ways_are_read_where_they_forgot_equally_much():
    points = points_of((0, 0.0), (0.05, 0.1), (0.15, 0.3), (0.5, 0.8))
    read = recipe.differences.best_within
    assert read(points, 0.1, "recall") == pytest.approx(0.2)
    assert read(points, 0.3, "recall") == pytest.approx(0.3 + 0.5 * 0.15 / 0.35)
    assert math.isnan(read(points, 0.6, "recall"))  # a higher rate might have learned more for it
    assert math.isnan(read(points_of((0, 0.0), (0.05, 0.1), (1.2, 0.8)), 0.3, "recall"))  # nor is it near one
    assert read([*points, points[-1]._replace(rise=math.inf)], 0.6, "recall") == pytest.approx(0.8)
    assert read(points_of((0, 0.02), (0.2, 0.0)), 0.1, "recall") == pytest.approx(0.02)
    assert recipe.differences.forgotten_at_half(points) == pytest.approx(3.7 + 0.15 + 0.35 * 0.4)
    assert math.isnan(recipe.differences.forgotten_at_half(points[:3]))
    low, high = recipe.questions.RATES[:2]
    assert recipe.differences.rate_at(points, 0.1) == pytest.approx((low * high) ** 0.5)
    assert math.isnan(recipe.differences.rate_at(points, 0.9))


def test_the_lowest_loss_on_unseen_text_has_no_figure_where_the_best_rate_is_the_last_one():
    def frontier(*losses):
        points = points_of((0, 0.0), *((0.1 * n, 0.1) for n in range(len(losses))))
        rows = zip(points, (4.0, *losses), strict=True)
        return [point._replace(result=replace(point.result, unseen_loss=loss)) for point, loss in rows]

    read, known = recipe.differences.read_measure, {("lane", 1): frontier(3.2, 3.1, 3.3)}
    known["lane", 2] = frontier(3.05, 3.1, 3.3)  # one pair may be best at the end, if the means are not
    assert read("unseen", known) == {("lane", 1): 3.1, ("lane", 2): 3.05}
    known["taylor", 1] = frontier(3.0, 3.1, 3.3)  # each text by itself
    assert all(map(math.isnan, read("unseen", known).values()))


def test_a_difference_is_told_only_from_enough_pairs_at_the_same_forgetting():
    question = QUESTIONS["layers"]

    def recall(way, place, text, seed):
        return 0.1 * place + (0.15 if way == "MLP" else 0.0) + noise(way, place, text, seed)

    answers = recipe.page.answer(question, made_runs(question, recall), "tiny")
    told = {(each.way, each.measure) for each in answers.differences if each.is_told}
    assert told == {("MLP", "recall_01"), ("MLP", "recall_03")} and len(answers.pairs) == 12
    few = made_runs(QUESTIONS["study"], recall, seeds=3)
    assert recipe.page.claims(few) == [] and "With 3 pairs, nothing is told apart" in recipe.page.page(few, {}, {})
    assert not recipe.page.answer(question, made_runs(question, recall, seeds=2), "tiny").question.ways
    # With a rate less, there is less to choose from; and seeds count in threes, of all texts.
    missing = [
        each for each in made_runs(question, recall) if (each.rate, each.text, each.seed) != (4e-4, "lane", 6)
    ]
    assert len(recipe.page.answer(question, missing, "tiny").pairs) == 6
    # A way with fewer pairs than another waits for them.
    fewer = [each for each in made_runs(question, recall) if each.seed <= 3 or "q_proj" not in each.recipe]
    answers = recipe.page.answer(question, fewer, "tiny")
    assert len(answers.pairs) == 12 and [way.name for way in answers.question.ways] == ["all-linear", "MLP"]
    lost = {"outcome": "diverged", "recall": None, "general_loss": None, "unseen_loss": None}
    diverged = [
        replace(each, **lost) if "q_proj" in each.recipe and each.rate == 1.6e-3 else each
        for each in made_runs(question, recall)
    ]
    answers = recipe.page.answer(question, diverged, "tiny")
    told = {each.way for each in answers.differences if each.measure == "recall_01" and each.is_told}
    assert len(answers.pairs) == 12 and told == {"MLP"}
    assert recipe.page.page(diverged, {}, {})


@pytest.mark.parametrize("draw", ["normal", "exponential"])
@pytest.mark.parametrize("pairs", [6, 12])
def test_a_difference_is_told_in_at_most_five_percent_of_empty_tables_and_fifteen_points_are_found(draw, pairs):
    apart = getattr(np.random.default_rng(4), draw)(size=(4, pairs))
    apart = 0.1 * (apart - apart.mean(axis=-1, keepdims=True)) / apart.std(axis=-1, keepdims=True)
    rows = [("a", "recall_01"), ("a", "unseen"), ("b", "recall_01"), ("b", "unseen")]
    table, tables = recipe.differences.Table(rows, [("lane", n) for n in range(pairs)], apart), 300
    chance = 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5  # two standard errors of the simulation
    assert recipe.differences.told_by_chance(table, tables) <= chance
    if pairs == 12:
        assert recipe.differences.told_by_chance(table, tables, 0.15, 2) >= 0.8


def test_the_page_claims_what_the_records_bear_and_nothing_else():
    question = QUESTIONS["slicing"]

    def recall(way, place, text, seed):
        return 0.1 * place + (0.2 if way.startswith("DEMENTOR at every") else 0.0) + noise(way, place, text, seed)

    made = made_runs(question, recall)
    page = recipe.page.page(made, {}, {"slicing": "pictures/a.svg"})
    borne = {claim["claim"] for claim in recipe.page.claims(made)}
    text = " ".join(page.split())
    assert borne and all(claim in text for claim in borne)
    claimed = re.findall(r"\*\*[^*]+\*\* has a (?:higher|lower) .*? pairs; [^)]*\)\.", text)
    assert set(claimed) <= borne
    rest = text.partition("| --- |")[2].replace(QUESTIONS["epochs"].words, "")
    assert not re.search(r"(?<!has a )\b(higher|lower|better|worse)\b", rest)
    assert (
        "Not told apart from **blocks** by recall inside sentences with a rise of general loss of at most" in text
    )
    assert "## What waits for more runs" in text and "- Which schedule?" in text  # waits for runs
    assert "![" in page and "(pictures/a.svg)" in page
    assert recipe.page.page([], {}, {}) and recipe.page.claims([]) == []


def sentences_of(file):
    """The sentences of a document, or of the strings of a module."""
    text = file.read_text(encoding="utf-8")
    parts = text.split('"') if file.suffix == ".json" else text.split("|")
    if file.suffix == ".py":
        constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        parts = [value for value in constants if isinstance(value, str)]
    return [each for part in parts for each in re.split(r"(?<=[.!?])\s", " ".join(part.split()))]


def test_what_is_said_elsewhere_of_measurements_is_borne_by_a_record():
    """Each sentence outside the page that speaks of runs or compares ways is in a list, with what bears it."""
    said = json.loads((recipe.texts.FOLDER / "said.json").read_text(encoding="utf-8"))
    found = set()
    for file in (file for pattern in SAYING for file in sorted(ROOT.glob(pattern))):
        for sentence in sentences_of(file):
            if MEASURED.search(sentence) or COMPARED.search(sentence):
                mine = [each["sentence"] for each in said if each["sentence"] in sentence]
                found.update(mine or [f"{file.name}: {sentence}"])
    assert found == {each["sentence"] for each in said}, (
        "a sentence without a record, or a record without its sentence"
    )


def test_the_records_of_what_is_said_are_true():
    said = json.loads((recipe.texts.FOLDER / "said.json").read_text(encoding="utf-8"))
    told = {(claim["question"], claim["way"], claim["measure"]) for claim in committed_claims()}
    with (recipe.texts.FOLDER / "results.csv").open(encoding="utf-8") as file:
        first_series = list(csv.DictReader(file))
    for bears in (each["borne by"] for each in said):
        match bears:
            case {"claim": claim}:
                assert tuple(claim) in told, bears
            case {"test": test}:
                file, name = test.split("::")
                assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), bears
            case {"first series": experiment, "more": more, "than": than, "by": columns}:
                series = [run for run in first_series if run["experiment"] == experiment]
                for column in columns:
                    high, low = (
                        {run["seed"]: float(run[column]) for run in series if run["arm"] == arm}
                        for arm in (more, than)
                    )
                    assert len(high) == 3 and all(high[seed] > low[seed] for seed in high), bears
            case {"source": words} | {"nothing": words}:
                assert words, "who says so, or what it says instead of a result"
            case _:
                pytest.fail(f"nothing bears it: {bears}")


def test_hardly_anything_is_recalled_at_rates_up_to_2e_4():
    made = recipe.results.read_results(recipe.texts.FOLDER / "runs.csv")
    low = [run.recall for run in made if run.rate <= 2e-4 and run.recall is not None]
    assert len(low) > 50 and max(low) < 0.035


def committed_claims():
    file = recipe.texts.FOLDER / "runs.csv"
    return recipe.page.claims(recipe.results.read_results(file)) if file.is_file() else []


def test_the_table_of_the_readme_is_that_of_the_estimates():
    readme = fits.PAGE.read_text(encoding="utf-8")
    assert readme == fits.with_table(readme), "run: python3 bench/fits.py --write"


@pytest.mark.long
def test_the_pictures_are_drawn_to_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    made = made_runs(QUESTIONS["slicing"], lambda way, place, text, seed: 0.1 * place, seeds=3)
    files = recipe.page.draw(made, tmp_path / "new")
    first = {name: file.read_bytes() for name, file in files.items()}
    assert list(first) == ["slicing"]
    assert {name: file.read_bytes() for name, file in recipe.page.draw(made, tmp_path / "new").items()} == first


@pytest.mark.long
def test_runs_of_every_kind_are_made_and_measured(tmp_path, tiny):
    lab = recipe.runs.Lab.open(tiny, tmp_path / "lab")
    ways = {way.name: (question, way) for question in QUESTIONS.values() for way in question.ways}
    for name in ("MLP", "DEMENTOR at every sentence", "as both", "a quarter"):
        question, way = ways[name]
        run = recipe.questions.Run(question.texts[0], replace(way, tokens=3000), 8e-4, 1)
        result = lab.make(run)
        assert (result.key, result.outcome) == (lab.key(run), "finished")
        assert abs(result.trained_tokens - 3000) <= result.trained_tokens / result.steps  # one step
        assert (result.closed_book is not None) == (run.text == "notes")
        assert None not in (result.recall, result.control_recall, result.general_loss, result.unseen_loss)
    again = replace(lab.make(run), seconds=0, seconds_measured=0)
    assert again == replace(result, seconds=0, seconds_measured=0)
    zero = lab.make(recipe.questions.Run("chats", UNTRAINED, 0.0, 1))
    assert (zero.steps, zero.rank, zero.copied) == (0, 0, None) and zero.recall is not None
