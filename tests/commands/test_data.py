"""The data workshop on the command line: what it drops, what it writes, and that nothing is overwritten."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.bench.cleaning import plant
from training_pro.commands.main import main

CHAT = [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]
DUPLICATE = "The old lamp stood in the harbour for a hundred years before it was taken down by the town."


class Workshop:
    """A working folder, and the command in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.datasets, self._capsys = folder / "user_data" / "training" / "datasets", capsys
        self.datasets.mkdir(parents=True)

    def write(self, name: str, *rows: object, text: str = "") -> None:
        path = self.datasets / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text or "\n".join(map(json.dumps, rows)), encoding="utf-8")

    def read(self, name: str) -> list[dict[str, object]]:
        return list(map(json.loads, (self.datasets / name).read_text(encoding="utf-8").splitlines()))

    def run(self, *arguments: object, code: int = 0) -> dict[str, object]:
        """The figures, or for another exit code what is said."""
        home = self.datasets.parent.parent
        assert main(["data", *map(str, arguments), "--user-data", str(home), "--json"]) == code
        out, err = self._capsys.readouterr()
        return json.loads(out) if code == 0 else {"said": err}


@pytest.fixture
def shop(tmp_path, capsys):
    return Workshop(tmp_path, capsys)


def kinds(rows):
    return {kind: {row["id"] for row in rows if row["kind"] == kind} for kind in ("exact", "near", "refusal")}


def test_without_a_recipe_duplicates_near_duplicates_and_refusals_are_dropped(shop):
    rows = plant(1000)
    planted = kinds(rows)
    shop.write("rows.jsonl", *rows)
    figures = shop.run("clean", "rows.jsonl", "--out", "clean.jsonl")
    kept = {row["id"] for row in shop.read("clean.jsonl")}
    dropped = {row["id"] for row in rows} - kept
    assert planted["exact"] | planted["refusal"] <= dropped
    wanted = set.union(*planted.values())
    assert len(dropped & wanted) >= 0.95 * max(len(dropped), len(wanted))
    assert (figures["rows"], figures["kept"]) == (1000, len(kept))
    counts = figures["dropped"]
    assert counts["refusals"] == len(planted["refusal"]) and counts["exact_duplicates"] >= len(planted["exact"])
    assert sum(counts.values()) == len(dropped)
    assert all(0 < len(examples) <= 10 for examples in figures["examples"].values())


def test_what_was_applied_is_beside_the_output_and_cleans_the_next_dataset_alike(shop):
    shop.write("a.jsonl", {"text": "one"}, {"text": "ONE "}, {"text": "OpenAI made it."})
    shop.run("clean", "a.jsonl", "--out", "b.jsonl", "--set", "refusals=off", "languages=en,de")
    recipe = shop.datasets / "b.jsonl.recipe.json"
    applied = json.loads(recipe.read_text(encoding="utf-8"))
    assert applied["languages"] == ["en", "de"] and applied["applied"]["dropped"] == {"exact_duplicates": 1}
    assert shop.run("clean", "a.jsonl", "--recipe", recipe)["kept"] == 2
    recipe.write_text('{"min_words": 2}')
    assert shop.run("clean", "a.jsonl", "--recipe", recipe)["dropped"] == {"min_words": 2}
    recipe.write_text('{"min_words": "two", "twice": true, "near_duplicates": 2}')
    said = shop.run("clean", "a.jsonl", "--recipe", recipe, code=1)["said"]
    assert "min_words is 'two', which is not a whole number" in said and "unknown key 'twice'" in said
    assert "near_duplicates is 2" in said and "exact_duplicates" in said


def test_only_the_sentence_of_a_refusal_is_dropped_where_that_is_asked(shop):
    asked = {"role": "user", "content": "As an AI language model, who are you?"}
    replies = ["It is blue. As an AI language model, I can't see. Look up.", "As an AI language model, no."]
    rows = [{"messages": [asked, {"role": "assistant", "content": reply}]} for reply in replies]
    shop.write("a.jsonl", *rows)
    figures = shop.run("clean", "a.jsonl", "--out", "b.jsonl", "--set", "refusals=sentence")
    assert (figures["changed"], figures["dropped"]) == ({"refusals": 1}, {"refusals": 1})
    (row,) = shop.read("b.jsonl")
    assert row["messages"] == [asked, {"role": "assistant", "content": "It is blue. Look up."}]


def test_each_other_step_drops_its_own_rows(shop):
    good = "The house is in the town and it was old."
    others = {
        "empty_replies=true": "  ", "broken_encoding=true": "The cafÃ© was in the town.",
        "languages=en": "Das ist nicht die Stadt, und sie war auch nicht alt.", "min_words=4": "No.",
        "max_words=20": "word " * 30, "phrases_drop=record": "My Secret is here.",
    }  # fmt: skip
    for step, reply in others.items():
        shop.write("a.jsonl", {"prompt": "a", "response": good}, {"prompt": "b", "response": reply})
        more = ["--phrase", "secret", "other"] if "phrases" in step else []
        figures = shop.run("clean", "a.jsonl", "--set", step, *more)
        assert figures["kept"] == 1 and sum(figures["dropped"].values()) == 1, step


def test_pairs_that_differ_in_their_rejected_reply_stay(shop):
    asked = {"role": "user", "content": DUPLICATE}
    for says in (str, lambda text: [asked, {"role": "assistant", "content": text}]):
        pair = {"prompt": DUPLICATE, "chosen": says(f"{DUPLICATE} Yes.")}
        names = ("Ann", "Bo", "Cy", "Bo")
        shop.write("a.jsonl", *({**pair, "rejected": says(f"{name} says no, {name}.")} for name in names))
        assert shop.run("clean", "a.jsonl")["dropped"] == {"exact_duplicates": 1}


def test_a_prompt_that_all_rows_begin_with_makes_no_near_duplicates(shop):
    names = [f"name{number} of the {number * 7}th house" for number in range(60)]
    shop.write("a.jsonl", *({"instruction": f"{DUPLICATE * 3} {name}?", "output": f"{name}."} for name in names))
    assert shop.run("clean", "a.jsonl")["kept"] == 60
    shop.write("b.jsonl", *({"instruction": DUPLICATE * 3, "output": name} for name in names))
    shop.write("c.jsonl", *({"instruction": DUPLICATE * 3, "output": name.split()[0]} for name in names))
    shop.write("d.jsonl", *({"instruction": f"{DUPLICATE * 3} {name}?", "output": "Yes."} for name in names))
    assert [shop.run("clean", f"{name}.jsonl")["kept"] for name in "bcd"] == [60, 60, 60]
    shop.run("split", "b.jsonl", "--out", "parts", "--validation", 0.1)
    assert len(shop.read("parts/validation.jsonl")) == 6


def test_of_many_near_copies_of_one_row_one_is_left_and_a_split_has_them_on_one_side(shop):
    """Though what they share is in many rows."""
    rows = plant(140)
    copies = [
        {**rows[0], "output": f"{rows[0]['output']} word{number} end", "kind": "copy"} for number in range(60)
    ]
    shop.write("a.jsonl", *(row for row in rows if row["kind"] == "plain"), *copies)
    assert shop.run("clean", "a.jsonl", "--out", "clean.jsonl")["dropped"] == {"near_duplicates": 60}
    shop.run("split", "a.jsonl", "--out", "parts", "--validation", 0.1)
    sides = [{row["kind"] for row in shop.read(f"parts/{name}.jsonl")} for name in ("train", "validation")]
    assert "copy" not in sides[0] & sides[1]


def test_a_text_is_cleaned_by_paragraphs_and_keeps_its_gaps_and_hard_cuts(shop):
    text = f"One.\n\n{DUPLICATE}\n\nYes.\n\n\n\nYes.\n\n{DUPLICATE.upper()}\n\n\nEnd ends.\n"
    shop.write("book.txt", text=text)
    assert shop.run("clean", "book.txt", "--out", "clean.txt")["dropped"] == {"exact_duplicates": 1}
    cleaned = (shop.datasets / "clean.txt").read_text(encoding="utf-8")
    assert cleaned == f"One.\n\n{DUPLICATE}\n\nYes.\n\n\n\nYes.\n\n\nEnd ends.\n"
    shop.run("clean", "book.txt", "--out", "clean.jsonl", "--set", "exact_duplicates=false", "near_duplicates=0")
    sections = [f"One.\n\n{DUPLICATE}\n\nYes.", f"Yes.\n\n{DUPLICATE.upper()}", "End ends."]
    assert [row["text"] for row in shop.read("clean.jsonl")] == sections


def test_look_says_what_is_in_a_dataset_and_changes_nothing(shop, tiny):
    english, german = "It is what it was in the house", "Das ist nicht das Haus und es war nie"
    rows = [{"conversations": [*CHAT, {"from": "human", "value": text}]} for text in (english, english, german)]
    shop.write("a.jsonl", *rows, {"conversations": []})
    before = sorted(shop.datasets.iterdir())
    figures = shop.run("look", "a.jsonl")
    assert figures["kinds"] == {"2 user, 1 assistant": 3, "no text": 1} and figures["rows"] == 4
    assert figures["languages"] == {"en": 2, "de": 1, "unclear": 1}
    assert figures["dropped"] == {"exact_duplicates": 1, "empty_replies": 1}
    assert figures["lengths"]["assistant"]["median"] == 1 and figures["unit"] == "words"
    in_tokens = shop.run("look", "a.jsonl", "--model", tiny)
    assert in_tokens["unit"] == "tokens" and in_tokens["lengths"]["user"]["longest"] > 8
    assert sorted(shop.datasets.iterdir()) == before


def test_a_split_leaves_no_row_on_one_side_that_is_nearly_on_the_other(shop):
    rows = plant(400)
    shop.write("a.jsonl", *rows)
    shop.run("split", "a.jsonl", "--out", "parts", "--validation", 0.1)
    training, validation = (shop.read(f"parts/{name}.jsonl") for name in ("train", "validation"))
    assert len(validation) == 40 and sorted(row["id"] for row in training + validation) == list(range(400))
    learned = [set(row["output"].split()) for row in training]
    for row in validation:
        words = set(row["output"].split())
        assert max(len(words & other) / len(words | other) for other in learned) < 0.5


def test_rows_of_one_conversation_or_document_are_on_one_side(shop):
    for columns in (("conversation_id", "turn"), ("doc_id", "page"), ("message_id", "parent_id")):
        rows = []
        for group in range(20):
            for turn in range(3):
                ids = (group, turn)
                if columns[0] == "message_id":
                    ids = (f"{group}.{turn}", f"{group}.{turn - 1}" if turn else "")
                rows.append({**dict(zip(columns, ids, strict=True)), "group": group, "text": f"{group} x{turn}"})
        out = columns[0]
        shop.write("a.jsonl", *rows)
        shop.run("split", "a.jsonl", "--out", out, "--validation", 0.2)
        training, validation = (
            {row["group"] for row in shop.read(f"{out}/{name}.jsonl")} for name in ("train", "validation")
        )
        assert not training & validation and len(validation) == 4


def test_a_text_is_split_by_sections_and_one_without_any_inside(shop):
    paragraphs = [" ".join(f"w{(number * 37 + n * n) % 997}" for n in range(30)) for number in range(40)]
    for gap in ("\n\n\n", "\n\n"):
        shop.write("book.txt", text=gap.join(paragraphs))
        name = f"parts{len(gap)}"
        shop.run("split", "book.txt", "--out", name, "--validation", 0.2)
        files = (shop.datasets / name / f"{side}.txt" for side in ("train", "validation"))
        sides = [file.read_text(encoding="utf-8").strip().split("\n\n\n") for file in files]
        found = [paragraph for side in sides for text in side for paragraph in text.split("\n\n")]
        assert (
            sorted(found) == sorted(paragraphs) and 0.1 < len("".join(sides[1])) / len("".join(paragraphs)) < 0.3
        )
        # A hard cut that the author did not write stands only where something is left out.
        follow = [(paragraphs.index(p.split("\n\n")[-1]), paragraphs.index(q.split("\n\n")[0]))
                  for side in sides for p, q in pairwise(side)]  # fmt: skip
        assert len(gap) == 3 or all(start > end + 1 for end, start in follow)


def test_everything_is_converted_to_the_common_forms(shop):
    messages = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
    pair = {"instruction": "Hi?", "output": "Hello."}
    shop.write("chat.jsonl", {"conversations": CHAT, "id": 7})
    shop.write("pairs.csv", text="question,answer\nHi?,Hello.\n")
    shop.write("dump.sql", text="INSERT INTO chats (prompt, response) VALUES ('Hi?', 'Hello.');")
    for number, name in enumerate(("chat.jsonl", "pairs.csv", "dump.sql")):
        for form, row in (("messages", {"messages": messages}), ("instruction", pair)):
            shop.run("convert", name, "--out", f"{form}{number}.jsonl", "--form", form)
            assert shop.read(f"{form}{number}.jsonl") == [row]
    shop.run("convert", "pairs.csv", "--out", "text.jsonl", "--form", "text")
    assert shop.read("text.jsonl") == [{"text": "Hi?\n\nHello."}]
    own, column = {"role": "system", "content": "Be Maren."}, {"system": "Be Maren."}
    shop.write("lead.jsonl", {**column, "messages": messages}, {"system": "Be Jo.", "messages": [own, *messages]})
    shop.write("talk.jsonl", {**column, "conversations": CHAT})
    for name, rows in (("lead", 2), ("talk", 1)):
        for form, row in (("messages", {"messages": [own, *messages]}), ("instruction", {**column, **pair})):
            shop.run("convert", f"{name}.jsonl", "--out", f"{form}.{name}.jsonl", "--form", form)
            assert shop.read(f"{form}.{name}.jsonl") == [row] * rows
    shop.write("long.jsonl", {"conversations": CHAT * 2}, {"conversations": CHAT})
    figures = shop.run("convert", "long.jsonl", "--out", "short.jsonl", "--form", "instruction")
    assert (figures["kept"], list(figures["dropped"].values())) == (1, [1])


GROUP = "12/03/2024, 18:22 - Jo: Who rows?\n12/03/2024, 18:23 - Al: I do.\n12/03/2024, 18:24 - Bo: And I."


def test_who_i_am_in_a_chat_is_said_by_its_flag(shop):
    shop.write("_chat.txt", text=GROUP)
    assert "does not say who you are" in shop.run("look", "_chat.txt", code=1)["said"]
    shop.run("convert", "_chat.txt", "--out", "a.jsonl", "--chat-user", "Bo", "--chat-side", "user")
    (row,) = shop.read("a.jsonl")
    assert row["messages"][-1] == {"role": "assistant", "content": "And I."}


def test_an_exam_is_asked_and_what_failed_is_studied_without_its_questions_only(shop, tiny):
    shop.write("exam.jsonl", {"instruction": "Who rang the bell?", "output": "Ada"})
    shop.write("bad.jsonl", {"text": "one"})
    figures = shop.run("exam", "exam.jsonl", "--model", tiny)
    assert figures["without"]["sections"] == [{"name": "exam.jsonl", "right": 0, "asked": 1}]
    assert "bad.jsonl is no exam" in shop.run("exam", "bad.jsonl", "--model", tiny, code=1)["said"]
    with pytest.raises(SystemExit):
        shop.run("study", "exam.jsonl", "--model", tiny, "--out", "n.jsonl", "--failed", "a")


def test_a_name_that_does_not_fit_is_a_sentence(shop):
    shop.write("a.jsonl", {"text": "one"})
    assert "rows can be written as .jsonl" in shop.run("clean", "a.jsonl", "--out", "b.csv", code=1)["said"]
    assert "above 0 and below 1" in shop.run("split", "a.jsonl", "--out", "b", "--validation", 1, code=1)["said"]
    assert "can't be split" in shop.run("split", "a.jsonl", "--out", "b", code=1)["said"]
    assert "is a path" in shop.run("clean", "a.jsonl", "--out", "a/../../b.jsonl", code=1)["said"]


NAMES = st.sampled_from(["a.jsonl", "b.jsonl", "book.txt", "new.jsonl", "new.txt", "parts", "c.jsonl"])
USES = st.tuples(st.sampled_from(["look", "clean", "split", "convert"]), NAMES, NAMES)


@given(st.lists(USES, min_size=1, max_size=6))
def test_nothing_is_ever_overwritten(tmp_path_factory, uses):
    home = tmp_path_factory.mktemp("home")
    datasets = home / "training" / "datasets"
    datasets.mkdir(parents=True)
    for name, content in {"a.jsonl": '{"text": "one two"}\n{"text": "three"}', "book.txt": "One.\n\nTwo."}.items():
        (datasets / name).write_text(content, encoding="utf-8")
    for action, name, out in uses:
        before = {path: path.read_bytes() for path in datasets.rglob("*") if path.is_file()}
        main(["data", action, name, "--out", out, "--user-data", str(home)])
        assert {path: path.read_bytes() for path in before} == before
        assert not [path for path in datasets.rglob("*") if path.name.startswith(".")]


def test_a_share_of_a_map_is_written_and_a_file_of_a_url(shop, hub):
    place = {"name": "a", "x": 0.5, "y": 1, "outlier": False, "like": None, "begin": "a"}
    shop.write("r.map.jsonl", *({**place, "cluster": n % 2 + 1, "row": {"text": str(n)}} for n in range(10)))
    shop.run("map", "r.map.jsonl", "--keep", "1=0.4", "2=0", "--out", "new.jsonl")
    assert len(shop.read("new.jsonl")) == 2
    assert "map needs --model" in shop.run("map", "new.jsonl", code=1)["said"]
    hub.add("toys/files", more={"rows.jsonl": b'{"text": "a"}\n'})
    url = f"{hub.url}/toys/files/resolve/main/rows.jsonl"
    assert "--allow-private" in shop.run("get", url, code=1)["said"]
    assert shop.run("get", url, "--allow-private")["out"].endswith("rows.jsonl")
    assert shop.read("rows.jsonl") == [{"text": "a"}]
