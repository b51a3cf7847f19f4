"""Chats that people have: logs of TextGen and SillyTavern, exports of messengers, and whose side is learned."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.core.errors import DataError, SettingsError
from training_pro.core.host import ModelCard
from training_pro.core.jobs import Session
from training_pro.data import dataset_index, workshop
from training_pro.data.prepare import check_datasets, prepare
from training_pro.data.readers import row_files
from training_pro.data.workshop import Dataset, study
from training_pro.interface.base import PageContext
from training_pro.interface.train import data_menu
from training_pro.records.folder import plan_upload
from training_pro.records.remote import write_portable_run
from training_pro.settings.parsing import training_settings
from training_pro.tests.data.readers.reading import read_table, refusal, write
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.rowing import CHATML, family, learned_text, prepare_rows, with_template

ROW = "Yes, I row over the whole of the lake on each and every day."
LOG = {
    "internal": [
        ["<|BEGIN-VISIBLE-CHAT|>", "Hello, I am Maren."],
        ["Can you row, {{char}}?", f"<think>Can I?</think>\n\n{ROW}"],
        ["", "Come along, <USER>!"],
        ["And back?", "A</think>No."],
    ],
    "visible": [["", "Hello"]],
    "metadata": {
        "user_1": {"attachments": [{"name": "map.png"}], "timestamp": "Nov 28, 2026 04:36"},
        "assistant_0": {"versions": [{"content": "Hi."}, {"content": "Hello, I am Maren."}]},
        "assistant_2": {"versions": [{"content": "Stay here."}, {"content": "Come along, <USER>!"}]},
        "assistant_3": {
            "versions": [
                {"content": text} for text in ("Never.", "", "A</think>No.", "<think>x</think>No.", "NO!")
            ],
            "current_version_index": 2,
            "tool_sequence": [{"tool_calls": []}, {"role": "tool"}],
        },
    },
}
GREETING = {"role": "assistant", "content": "Hello, I am Maren.", "train": False}


def messages(*contents: str, first: str = "user") -> list[dict[str, Any]]:
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]


def conversations(path, **chats: Any) -> list[list[dict[str, Any]]]:
    """The messages of each conversation that has a reply."""
    return [row.columns["messages"] for row in read_table(path, **chats)[1] if row.columns]


def counts(path, **chats: Any) -> dict[str, int]:
    return {reason: n for row in read_table(path, **chats)[1] for reason, n in row.left_out.items() if n}


def kept_and_swiped(path, **chats: Any) -> list[tuple[str, str]]:
    rows = [row.columns for row in read_table(path, objective="dpo", **chats)[1] if row.columns]
    assert all(row["prompt"][-1]["role"] == "user" for row in rows)
    return [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows]


@pytest.fixture
def folders(tmp_path):
    """A host with three chats with Maren, one of them new, and one in instruct mode."""
    folders = make_folders(tmp_path)
    write(folders.chats / "chat" / "Maren" / "20261128-04-36-00.json", json.dumps(LOG))
    write(folders.chats / "chat" / "Maren" / "20261128-04-40-00.json", json.dumps({**LOG, "metadata": {}}))
    new = {"internal": [["<|BEGIN-VISIBLE-CHAT|>", "Hello, I am Maren."]], "visible": [], "metadata": {}}
    write(folders.chats / "chat" / "Maren" / "20261128-04-50-00.json", json.dumps(new))
    write(
        folders.chats / "instruct" / "20261128-05-00-00.json",
        json.dumps({"internal": [["a", "b"]], "visible": []}),
    )
    write(
        folders.user_data / "characters" / "Maren.yaml",
        "name: Maren Lund\ncontext: |\n  {{char}} rows {{user}}.\n",
    )
    return folders


def check(folders, name: str, **values: Any):
    settings = training_settings({"name": "a", "data": [name], **values})
    tokenizer = family("ChatML")
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    return check_datasets(settings, folders, card, tokenizer, lambda text, share: None)


def test_a_log_of_textgen_has_the_current_versions_without_thoughts_tools_and_attachments(tmp_path):
    path = write(tmp_path / "a.json", json.dumps(LOG))
    talk = messages("Can you row, AI?", f"{ROW}\nCome along, You!", "And back?", "No.")
    assert conversations(path) == [[GREETING, *talk]]
    assert counts(path) == {"attachments": 1, "thoughts": 2, "tool messages": 2}
    assert read_table(path)[0].what == "a chat from TextGen"
    [mine] = conversations(path, chat_side="user", chat_user="Jo")
    assert mine[:2] == messages("Hello, I am Maren.", "Can you row, AI?") and mine[2]["content"].endswith("Jo!")
    older = write(tmp_path / "b.json", json.dumps({"data": [["a", "b"]], "data_visible": [["a", "b"]]}))
    assert conversations(older) == [messages("a", "b")]


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("<think>a</think>b", "b"),
        ("<think>cut off", ""),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "b"),
        ("<|channel>thought\na<channel|>b", "b"),
        ("b\n<tool_call>{}</tool_call>", "b"),
        ("<seed:think>a</seed:think>\n\nb < c", "b < c"),
    ],
)
def test_thoughts_in_the_forms_that_textgen_knows_are_dropped(tmp_path, reply, kept):
    path = write(tmp_path / "a.json", json.dumps({"internal": [["a", reply], ["c", "d"]], "visible": []}))
    [talk] = conversations(path)
    assert talk == (messages("a", kept, "c", "d") if kept else messages("a\nc", "d"))


def test_preferences_are_the_kept_reply_against_each_other_version_but_no_correction(tmp_path):
    path = write(tmp_path / "a.json", json.dumps(LOG))
    assert kept_and_swiped(path) == [
        (f"{ROW}\nCome along, You!", f"{ROW}\nStay here."),  # after another reply, both begin with it
        ("No.", "Never."),
    ]
    corrected = {"content": ROW.replace("each and every", "each and evry")}
    versions = {"assistant_3": {"versions": [corrected, {"content": "The lake is mine."}]}}
    edited = {**LOG, "internal": [*LOG["internal"][:3], ["And back?", ROW]], "metadata": versions}
    assert kept_and_swiped(write(path, json.dumps(edited))) == [(ROW, "The lake is mine.")]
    asked = {**LOG, "metadata": {"user_3": {"versions": [{"content": "And then?"}]}}}
    assert kept_and_swiped(write(path, json.dumps(asked)), chat_side="user") == [("And back?", "And then?")]


def test_the_prompt_of_a_preference_is_all_that_was_said_before(folders):
    row = read_table(folders.chats / "chat" / "Maren", objective="dpo")[1][1]
    context = {"role": "system", "content": "Maren Lund rows You."}
    talk = messages("Can you row, Maren Lund?", f"{ROW}\nCome along, You!", "And back?")
    assert row.columns["prompt"] == [context, GREETING, *talk]
    assert row.columns["chosen"] == messages("No.", first="assistant")
    assert row.columns["rejected"] == messages("Never.", first="assistant")


def test_the_hosts_own_chats_are_one_dataset_with_the_characters_context(folders):
    names = [entry.name for entry in dataset_index.list_datasets(folders)]
    assert names == ["chats:instruct", "chats:Maren"]
    [entry] = dataset_index.find_datasets(["chats:Maren:50"], folders)
    assert (entry.name, entry.share.percent) == ("chats:Maren", 50)
    records = [record for record in Dataset(entry.path).records() if not record.problem]
    roles = [[spot.role for spot in record.spots][:2] for record in records]
    assert roles and all(each == ["system", "assistant"] for each in roles)  # in the Data tab, too
    assert dataset_index.dataset_name_at("chats:Maren:50", folders) == "chats:Maren:50"
    first, second = conversations(entry.path)
    assert first == second
    assert first[:2] == [{"role": "system", "content": "Maren Lund rows You."}, GREETING]
    assert conversations(entry.path, chat_context=False)[0][0] == GREETING
    assert conversations(entry.path, chat_side="user")[0][0]["role"] == "user"  # the context is Maren's, not mine
    for damage in ("name: [", "- 1", "\x00"):
        write(folders.user_data / "characters" / "Maren.yaml", damage)
        table, rows = read_table(entry.path)
        assert table.notes[0].startswith("The character Maren can't be read from") and len(rows) == 3


@pytest.mark.parametrize(
    "name", ["chats:", "chats:Nobody", "chats:../instruct", "chats:..", "chats:/etc", "chats:out"]
)
def test_nothing_outside_of_the_logs_is_read(folders, name):
    outside = write(folders.user_data / "outside" / "a.json", json.dumps(LOG))
    (folders.chats / "chat" / "out").symlink_to(outside.parent)
    (folders.chats / "chat" / "Maren" / "out.json").symlink_to(outside)
    with pytest.raises(DataError, match="there is no dataset named"):
        dataset_index.find_datasets([name], folders)
    with pytest.raises(DataError):
        dataset_index.locate_dataset(name, folders)
    assert len(read_table(dataset_index.locate_dataset("chats:Maren", folders))[1]) == 3


def test_a_character_may_have_a_number_as_its_name(folders):
    assert dataset_index.parse_share("chats:9") == ("chats:9", 100)
    assert dataset_index.parse_share("chats:9:25%") == ("chats:9", 25)
    training_settings({"name": "a", "data": ["chats:9"], "eval_data": ["chats:8"]})
    with pytest.raises(SettingsError, match="chats:9:50 is also in the training data"):
        training_settings({"name": "a", "data": ["chats:9"], "eval_data": ["chats:9:50"]})


def test_damaged_foreign_and_huge_logs_are_named_and_the_others_are_read(folders):
    folder = folders.chats / "chat" / "Maren"
    for name, content in zip("abcde", ("{", "[1]", '{"internal": [["a"]]}', "[" * 10**5, b"\xff"), strict=True):
        write(folder / f"{name}.json", content)
    with (folder / "f.json").open("wb") as file:
        file.truncate(100_000_001)
    problems = [row.problem for row in read_table(folder)[1]]
    assert problems[:3] == ["", "", ""]
    for name, problem in zip("abcdef", problems[3:], strict=True):
        assert problem.startswith(f"'{name}.json': ") and problem.endswith(".")
    report = check(folders, "chats:Maren")
    assert report.problems[0].startswith("chats:Maren, conversation 4: 'a.json': this file is damaged")
    (folders.chats / "chat" / "Nils").mkdir()
    write(folders.chats / "chat" / "Nils" / "1.json", json.dumps({"internal": [], "visible": [], "metadata": {}}))
    assert "chats:Nils: no conversation has a reply" in check(folders, "chats:Nils").problems[0]


def test_check_says_that_chats_are_private_and_no_copy_of_them_is_prepared(folders):
    report = check(folders, "chats:Maren", chat_user="Jo")
    [source] = report.sources
    assert source.what.startswith("rows (your chats in TextGen): chats") and report.private
    assert (source.rows.rows, source.rows.without_reply, source.examples) == (3, 1, 2)
    assert any(note.startswith("Your chats are private: ") for note in report.notes)
    assert not list(folders.prepared_data.rglob("*.arrow"))
    assert not check(folders, "chats:instruct", eval_share=0).problems
    settings = training_settings({"name": "a", "data": ["chats:Maren"], "cutoff": 512})
    card = ModelCard("toy", {}, family("ChatML").tokenizer, "auto")
    data = prepare(settings, folders, card, family("ChatML"), lambda text, share: None)
    assert "<|im_start|>assistant\nHello, I am Maren.<|im_end|>" in data.examples[0].text
    assert learned_text(family("ChatML"), data.examples[0]) == f"{ROW}\nCome along, You!<|im_end|>|No.<|im_end|>"


def test_copies_of_chats_are_private_too(folders):
    path = dataset_index.locate_dataset("chats:Maren", folders)
    copy, text = folders.datasets / "copy.jsonl", folders.datasets / "text.jsonl"
    workshop.clean_dataset(Dataset(path), workshop.Recipe(), (), copy)
    workshop.convert_dataset(Dataset(copy), "text", text)
    for file in (copy, text):
        report = check(folders, file.name, cutoff=512)
        assert report.private and not any("'private'" in note for note in report.sources[0].notes)
    assert not list(folders.prepared_data.rglob("*.arrow"))
    book = study.NoteBook(folders.datasets / "notes.jsonl", parts := study.read_parts(Dataset(path)))
    book.add([(study.Task(0, "questions", 0, parts), study.Note("Who?", "Maren", ""))])
    assert json.loads(book.path.read_text())["private"] is True


@pytest.mark.parametrize(
    ("allowed", "begins"),
    [
        ("['user']", "<|im_start|>user\nHello, I am Maren.\n\nCan you row, AI?"),
        (
            "['system', 'user']",
            "<|im_start|>system\nHello, I am Maren.<|im_end|>\n<|im_start|>user\nCan you row, AI?",
        ),
    ],
)
def test_a_template_that_refuses_a_greeting_gets_it_before_the_first_question(tmp_path, allowed, begins):
    strict = (
        f"{{% if messages[0].role not in {allowed} %}}{{{{ raise_exception('The user begins.') }}}}{{% endif %}}"
    )
    tokenizer = with_template(family("ChatML").tokenizer, strict + CHATML)
    data = prepare_rows(tmp_path, tokenizer, {"a.json": json.dumps(LOG)}, cutoff=512)
    assert data.examples[0].text.startswith(begins)
    assert "Hello" not in learned_text(tokenizer, data.examples[0])
    assert not any("system message" in note for note in data.report.sources[0].notes), "the chat has none"


def test_nothing_outside_of_its_folder_quotes_the_chats_of_a_run(place):
    """Trained, because a run writes samples, events and a report."""
    folders, log = place.folders, {**LOG, "internal": [["Who?", "A quokka rows."]] * 4}
    write(folders.chats / "chat" / "Maren" / "1.json", json.dumps(log))
    folder = place.train(data=["chats:Maren"], max_steps=1, cutoff=512).folder
    quoting = {path for path in folders.user_data.rglob("*") if path.is_file() and b"quokka" in path.read_bytes()}
    assert quoting and {path.parent for path in quoting} == {folder, folders.chats / "chat" / "Maren"}
    plan = plan_upload(folder, "a", "me/a", also=sorted(path.name for path in quoting if path.parent == folder))
    assert not quoting & {file.content for file in plan.files}


def test_a_push_leaves_the_records_of_private_chats_out_and_says_so(tmp_path):
    lora = tmp_path / "a"
    write(lora / "adapter_config.json", '{"base_model_name_or_path": "toys/tiny"}')
    write(lora / "samples.jsonl", "{}")
    write(lora / "mine.txt", "free")
    for private in (False, True):
        write(lora / "training_log.json", json.dumps({"data": {"private": private}}))
        plan = plan_upload(lora, "a", "me/a", also=["samples.jsonl", "mine.txt"])
        assert ("samples.jsonl" in {file.name for file in plan.files}) is not private
        assert "mine.txt" in {file.name for file in plan.files}
        assert ("Not uploaded, because they may quote your private chats: samples.jsonl." in plan.lines) is private


def test_the_menu_has_each_character_with_its_chats_and_replies(folders):
    context = PageContext(FakeHost(folders=folders), None, Session())
    labels = {name: label for label, name in data_menu.dataset_choices(context)}
    assert labels["chats:Maren"] == "chats:Maren (2 chats, 6 replies)"
    assert labels["chats:instruct"] == "chats:instruct (1 chat, 1 reply)"
    assert data_menu.suggest_lora_name("chats:Maren", "tiny") == "chats_Maren-tiny"


def test_an_exported_run_takes_the_chats_and_the_character_along(folders, tmp_path):
    settings = training_settings({"name": "a", "data": ["chats:Maren"]})
    paths = {entry.name: entry.path for entry in dataset_index.find_datasets(settings.what.data, folders)}
    write_portable_run(settings, paths, ModelCard("tiny", {}, None, "auto"), folders, tmp_path / "out")
    assert (tmp_path / "out" / "characters" / "Maren.yaml").is_file()
    assert len(list((tmp_path / "out" / "logs" / "chat" / "Maren").iterdir())) == 3


SILLY = [
    {"user_name": "unused", "character_name": "unused", "chat_metadata": {}},
    {"name": "Maren", "is_user": False, "is_system": False, "mes": "Hello {{user}}.", "swipes": ["Hello.", "Ho."]},
    {"name": "System", "is_user": False, "is_system": True, "mes": "A note.", "extra": {"type": "comment"}},
    {"name": "System", "is_user": False, "is_system": False, "mes": "Rain.", "extra": {"type": "narrator"}},
    {"name": "Maren", "is_user": False, "is_system": True, "mes": "Hidden."},
    {"name": "Jo", "is_user": True, "is_system": False, "mes": "Who are you?", "extra": {"image": "a.png"}},
    {"name": "Maren", "is_user": False, "mes": "A rower.", "swipes": ["Nobody.", "A rower."], "swipe_id": 1,
     "extra": {"reasoning": "Who am I?"}},
]  # fmt: skip


def test_a_file_of_sillytavern_is_one_conversation(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, SILLY)))
    greeting = {"role": "assistant", "content": "Hello You.", "train": False}
    assert conversations(path) == [[greeting, *messages("Who are you?", "A rower.")]]
    left_out = {"system messages": 1, "narrator's messages": 1, "hidden messages": 1}
    assert counts(path) == {**left_out, "thoughts": 1, "attachments": 1}
    assert kept_and_swiped(path) == [("A rower.", "Nobody.")]
    with path.open("a") as file:
        file.write("\n" + json.dumps({"name": "Nils", "is_user": False, "mes": "And I?"}) + '\n{"name": "Ma')
    [group] = conversations(path)  # of several characters, each says who speaks
    assert group[-1]["content"] == "Maren: A rower.\nNils: And I?"
    assert counts(path)["damaged lines"] == 1


WHATSAPP = {
    "[{d}, 18:22:{s}] ": ("12.03.24", "13.03.24"),
    "[{d}, 6:22:{s}\u202fPM] ": ("3/12/24", "3/13/24"),
    "{d}, 18:22 - ": ("12/03/2024", "13/03/2024"),
    "{d}, 6:22 p. m. - ": ("12/3/24", "13/3/24"),
    "{d} à 18:22 - ": ("12/03/2024", "13/03/2024"),
    "{d}, 18.22 - ": ("2024-03-12", "2024-03-13"),
}


@pytest.mark.parametrize("form", WHATSAPP)
def test_whatsapp_in_the_forms_of_its_countries(tmp_path, form):
    first, second = WHATSAPP[form]
    at, later = form.format(d=first, s="11"), form.format(d=second, s="50")
    lines = [
        f"{at}Messages and calls are end-to-end encrypted.",
        f"{at}Jo Berg: Hi Maren",
        f"\u200e{at}Maren: \u200eimage omitted",
        f"{at}Maren: Hello: Jo!",
        "How are you?",
        f"{at}Maren: <Media omitted>",
        f"{at}Jo Berg: Fine \u200e<This message was edited>",
        f"{later}Jo Berg: IMG-1.jpg (file attached)",
        "Look",
        f"{later}~\u202fMaren: Nice <Mensagem editada>",
        f"{later}Jo Berg: Missed voice call",
        f"{later}Maren: Diese Nachricht wurde gelöscht.",
    ]
    path = write(tmp_path / "WhatsApp Chat with Maren.txt", "\r\n".join(lines))
    assert row_files.is_row_file(path)
    talk = messages("Hi Maren", "Hello: Jo!\nHow are you?", "Fine")
    assert conversations(path) == [talk, messages("Look", "Nice")]
    assert counts(path) == {"system messages": 1, "attachments and deleted messages": 7}
    hidden = conversations(path, chat_names=True)[0]
    assert [message["content"] for message in hidden][:2] == ["Hi Person 2", "Hello: Person 1!\nHow are you?"]


def test_without_my_name_a_group_is_refused_with_its_people(tmp_path):
    lines = [f"12/03/2024, 18:2{n} - {who}: {who} says {n}" for n, who in enumerate(["Maren", "Jo", "Jo", "Nils"])]
    path = write(tmp_path / "_chat.txt", "\n".join(lines))
    message = refusal(path)
    assert message.startswith("_chat.txt does not say who you are. Enter your name under 'My name in chats'.")
    assert message.endswith("Jo (2 messages), Maren (1 message), Nils (1 message).")
    opening = {"role": "assistant", "content": "Maren: Maren says 0", "train": False}
    said = messages("Jo says 1\nJo says 2", "Nils: Nils says 3")
    assert conversations(path, chat_user="jo") == [[opening, *said]]
    later = ["13/03/2024, 18:20 - Jo: Hi", "13/03/2024, 18:21 - Maren: Ho"]  # only one of the others wrote
    write(path, "\n".join([*lines, *later]))
    assert conversations(path, chat_user="jo")[1] == messages("Hi", "Maren: Ho")
    with pytest.raises(DataError, match="has no messages of 'Kim'"):
        conversations(path, chat_user="Kim")


def test_texts_that_only_look_like_whatsapp_stay_texts(tmp_path):
    for text in ("", "A story.\n12/03/2024, 18:22 - Maren: Hi", "12/03/2024 was a day.", "18:22 - Maren: Hi"):
        assert not row_files.is_row_file(write(tmp_path / "a.txt", text))
    files = {
        "a/one.txt": "12/03/2024, 18:22 - Jo: Who?\n12/03/2024, 18:22 - Maren: I.",
        "a/two.txt": "A text. " * 9,
    }
    folders = make_folders(tmp_path / "b")
    for name, text in files.items():
        write(folders.datasets / name, text)
    report = check(folders, "a/", chat_user="Jo")
    assert [(source.name, source.examples) for source in report.sources] == [("a/", 1), ("a/one.txt", 1)]


def discord(*posts: tuple[str, ...], name: str = "maren") -> dict[str, Any]:
    """An export of DiscordChatExporter; a post is who, what and when, and its type."""
    return {
        "guild": {"name": "Direct Messages"},
        "channel": {"type": "DirectTextChat", "name": name},
        "messages": [
            {
                **{"id": str(n), "type": kind[0] if kind else "Default", "timestamp": f"2024-03-{at}+00:00"},
                **{"content": text, "attachments": [], "author": {"name": who, "isBot": who.endswith("bot")}},
            }
            for n, (who, text, at, *kind) in enumerate(posts)
        ],
    }


def test_discord_with_a_person_with_a_bot_and_in_a_group(tmp_path):
    path = tmp_path / "export.json"
    talk = [("jo", "Hi", "12T18:22:11.1234567"), ("maren", "Hello jo", "12T18:23:00", "Reply")]
    call, later = ("jo", "started a call", "12T18:24:00", "Call"), ("jo", "There?", "13T09:00:00")
    write(path, json.dumps(discord(*talk, call, later)))
    assert conversations(path) == [messages("Hi", "Hello jo")] and counts(path) == {"system messages": 1}
    assert conversations(path, chat_names=True) == [messages("Hi", "Hello Person 1")]
    write(path, json.dumps(discord(("jo", "Hi", "12T18:22:11"), ("marenbot", "Hello", "12T18:22:12"), name="x")))
    assert conversations(path) == [messages("Hi", "Hello")]
    write(path, json.dumps(discord(*talk, ("dicebot", "Six", "12T18:25:00"))))
    assert counts(path) == {"messages of bots": 1}
    write(path, json.dumps({**discord(*talk), "messages": [{"content": "Hi"}]}))
    assert "author 1 is null" in read_table(path)[1][0].problem


def telegram(*posts: tuple[Any, ...], name: str = "Maren") -> dict[str, Any]:
    """An exported chat; a post is who, what and when, and more of the message."""
    messages = [
        {"type": "message", "from": who, "text": text, "date_unixtime": str(at), **dict(*more)}
        for who, text, at, *more in posts
    ]
    return {"name": name, "type": "personal_chat", "id": 1, "messages": messages}


def test_telegram_with_a_chat_and_with_all_of_an_account(tmp_path):
    link, call = ["See ", {"type": "link", "text": "x.org"}, "!"], {"type": "service", "action": "phone_call"}
    chat = telegram(
        ("Jo", "Hi", 0), ("Maren", link, 60, {"photo": "a"}), ("Jo", "Buy!", 61, {"forwarded_from": "B"}),
        ("Maren", "", 62, call), ("Jo", "Later", 10**5), ("Maren", "OK", 10**5),
    )  # fmt: skip
    path = write(tmp_path / "result.json", json.dumps(chat))
    talks = [messages("Hi", "See x.org!"), messages("Later", "OK")]
    assert conversations(path) == talks
    assert counts(path) == {"attachments": 1, "forwarded messages": 1, "system messages": 1}
    news = [telegram(("News", "Rain", 0), name="News"), telegram(("Al", "Hi", 0), ("Bo", "Hi", 1), name="Club")]
    account = {"contacts": {"list": [{"user_id": 1}] * 5}, "chats": {"list": [telegram(), *news, chat]}}
    write(path, json.dumps(account))
    assert conversations(path, chat_user="Jo") == talks
    with pytest.raises(DataError, match="has no messages of 'Joe'"):
        read_table(path, chat_user="Joe")
    assert "'chats.list' (4 entries)" in read_table(path, chat_user="Jo")[0].notes[0]
    with pytest.raises(DataError, match="does not say who you are"):
        read_table(path)


def messenger(*posts: tuple[Any, ...]) -> dict[str, Any]:
    """An exported chat, the newest post first; a post is who and what, and more of the message."""
    timed = [
        {"sender_name": who, "content": text.encode().decode("latin-1"), "timestamp_ms": n, **dict(*more)}
        for n, (who, text, *more) in enumerate(posts)
    ]
    return {"participants": [], "messages": timed[::-1], "title": "Zoë".encode().decode("latin-1")}


def test_messenger_and_instagram_from_the_oldest_message_on_and_without_notices(tmp_path):
    shared, link = {"share": {"link": "https://x.org"}}, "See https://x.org"
    posts = [("Jo", "Schön 😀"), ("Zoë", link, shared), ("Zoë", "Zoë sent an attachment.", shared), ("Jo", "Ah")]
    posts += [("Zoë", "Reacted 😀 to your message "), ("Zoë", "Zoë called you.", {"call_duration": 3})]
    path = write(tmp_path / "message_1.json", json.dumps(messenger(*posts)))
    assert conversations(path) == [[*messages("Schön 😀", link), *messages("Ah")]]
    assert counts(path) == {"attachments": 2, "system messages": 2}
    write(path, json.dumps(messenger(("Zoë", "Hello?"))))
    assert conversations(path, chat_user="Jo") == []  # one of many chats, without an answer of mine


def test_a_folder_of_several_kinds_is_looked_at_and_not_written_as_one_file(tmp_path):
    folder = tmp_path / "chats"
    folder.mkdir()
    write(folder / "WhatsApp Chat with Maren.txt", "10/03/2024, 18:20 - Jo: Hi\n10/03/2024, 18:21 - Maren: Ho")
    write(folder / "b.jsonl", "\n".join(map(json.dumps, SILLY)))
    assert len(list(Dataset(folder).records())) == 2
    workshop.clean_dataset(Dataset(folder), workshop.Recipe(), (), tmp_path / "chats.jsonl")
    write(folder / "notes.txt", "A text.")
    with pytest.raises(DataError, match=r"several kinds of rows \(chat in messages, text\)"):
        workshop.clean_dataset(Dataset(folder), workshop.Recipe(), (), tmp_path / "all.jsonl")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<{\r"), max_size=12)


@given(st.lists(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=3)), max_size=6))
def test_every_word_of_a_log_is_in_its_conversation_and_sides_take_turns(tmp_path_factory, said):
    metadata = {
        f"assistant_{n}": {"versions": [{"content": v} for v in more]} for n, (_, _, more) in enumerate(said)
    }
    log = {"internal": [[mine, reply] for mine, reply, _ in said], "visible": [], "metadata": metadata}
    path = write(tmp_path_factory.mktemp("log") / "a.json", json.dumps(log))
    texts = [text.strip() for mine, reply, _ in said for text in (mine, reply)]
    for side in ("character", "user"):
        for talk in conversations(path, chat_side=side):
            assert "\n".join(each["content"] for each in talk) == "\n".join(filter(None, texts))
            assert all(one["role"] != other["role"] for one, other in pairwise(talk))
        versions = {text.strip() for _, _, more in said for text in more}
        for kept, swiped in kept_and_swiped(path, chat_side=side) if side == "character" else ():
            assert any(swiped.endswith(version) for version in versions) and kept != swiped


JUNK = (None, True, 0, -1.5, "", "x", [], {}, [[]], {"a": 1}, "\ud800", 10**30)


def damaged(value: Any, chance: random.Random) -> Any:
    """A JSON value in which some parts are others, or gone."""
    if chance.random() < 0.04:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        return {key: damaged(each, chance) for key, each in value.items() if chance.random() > 0.03}
    return (
        [damaged(each, chance) for each in value if chance.random() > 0.03] if isinstance(value, list) else value
    )


FORMS = (
    *("log.json", "host", "silly.jsonl", "discord.json", "telegram.json", "messenger.json"),
    "WhatsApp Chat with Maren.txt",
)


@pytest.mark.parametrize(
    "number", [*range(30), *(pytest.param(n, marks=pytest.mark.long) for n in range(30, 330))]
)
def test_a_damaged_chat_is_read_or_a_sentence_names_it(tmp_path, number):
    chance = random.Random(number)
    form = FORMS[number % len(FORMS)]
    talk = [("jo", "Hi", "12T18:22:11"), ("maren", "Hello", "12T18:23:00")] * 3
    lines = "".join(f"1{n}/03/2024, 18:22 - {who}: Hi\n" for n in range(5) for who in ("Jo", "Maren"))
    content = {
        "silly.jsonl": lambda: "\n".join(json.dumps(damaged(line, chance)) for line in SILLY),
        "discord.json": lambda: json.dumps(damaged(discord(*talk), chance)),
        "telegram.json": lambda: json.dumps(damaged(telegram(*talk), chance)),
        "messenger.json": lambda: json.dumps(damaged(messenger(*(post[:2] for post in talk)), chance)),
        FORMS[-1]: lambda: "".join(chance.choice((*[c] * 20, chance.choice("/:,-\u200e\n0x"))) for c in lines),
    }.get(form, lambda: json.dumps(damaged(LOG, chance)))()
    data = content.encode("utf-8", "surrogatepass")
    if chance.random() < 0.3:  # cut off by a crash, or overwritten
        data = data[: chance.randrange(len(data) + 1)] + bytes(
            chance.randrange(256) for _ in range(chance.randrange(4))
        )
    folders = make_folders(tmp_path)
    name = "chats:Maren" if form == "host" else form
    path = folders.chats / "chat" / "Maren" / "1.json" if form == "host" else folders.datasets / form
    write(path, data)
    report = check(folders, name, bad_rows="skip")
    assert report.problems or report.examples
    assert all(name in problem or "Dataset" in problem or "cutoff" in problem for problem in report.problems)
    assert path.read_bytes() == data
