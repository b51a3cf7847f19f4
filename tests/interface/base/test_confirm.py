"""What deletes for good happens at the second click: the first one says what it is."""

from __future__ import annotations

import asyncio

import gradio as gr
import pytest
from training_pro.core.jobs import Session
from training_pro.interface.base import Form, PageContext, confirm
from training_pro.interface.run.run_buttons import RunButtons
from training_pro.interface.tabs import RunsTab
from training_pro.interface.train.resume_panel import ResumePanel
from training_pro.records.folder import trash
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import FINISHED, write_files

BUTTONS = {"tp-throw-away": "Stop and discard", "tp-unfinished-throw": "Discard"}


class Click:
    """A button of a page, with what the page keeps for its question."""

    def __init__(self, blocks, elem_id):
        self.button = next(b for b in blocks.blocks.values() if b.elem_id == elem_id)
        (found,) = [f for f in blocks.fns.values() if (self.button._id, "click") in f.targets]
        self.handler, self.inputs = found.fn, {part: part.value or "" for part in found.inputs}
        self.label = self.button.value

    def __call__(self, **values):
        """The texts that the button shows, and everything else that the click changed."""
        self.inputs.update({part: values[part.elem_id] for part in self.inputs if part.elem_id in values})
        updates, shown = {}, []

        async def follow():
            async for update in self.handler(self.inputs):
                shown.append(update[self.button])
                updates.update(update)

        asyncio.run(follow())
        self.inputs.update({part: updates[part] for part in self.inputs if part in updates})
        return shown, updates


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(confirm, "CONFIRM_SECONDS", 0.3)
    folders, session = make_folders(tmp_path), Session()
    write_files(folders.loras, "story", FINISHED)
    context = PageContext(FakeHost(folders=folders), None, session)
    with gr.Blocks() as blocks:
        form = Form()
        buttons, resume, answer = RunButtons(context), ResumePanel(context, form), gr.HTML()
        buttons.draw(), buttons.draw_more(), buttons.draw_live(), resume.draw()
        with gr.Tab() as tab:
            RunsTab(context, form).draw(tab)
        buttons.connect(form, answer), resume.connect()
    return blocks, folders


def test_the_trash_is_emptied_by_a_second_click_on_the_same_question(page):
    blocks, folders = page
    click = Click(blocks, "tp-runs-empty")
    trash.move_to_trash("story/checkpoint-6-user", folders)
    assert click()[0][0].startswith("Delete 1 item permanently (")
    trash.move_to_trash("story", folders)  # more than the user was asked about
    assert click()[0][0].startswith("Delete 2 items permanently (") and len(trash.list_trash(folders)) == 2
    assert click()[0][-1] == "Empty trash" and len(trash.list_trash(folders)) == 2  # too late: it asks again
    (asked,) = [part for part, value in click.inputs.items() if isinstance(value, confirm.Question)]
    click.inputs[asked] = confirm.Question(click.inputs[asked].text, float("inf"))
    assert click()[0] == ["Empty trash"] and trash.list_trash(folders) == []


def test_checkpoints_are_shrunk_by_a_second_click(page):
    blocks, folders = page
    click = Click(blocks, "tp-runs-slim")
    state = folders.loras / "story" / "checkpoint-4-epoch-1" / "run_state.json"
    shown, _ = click(**{"tp-runs-chosen": "story/checkpoint-4-epoch-1"})
    assert shown == ["Never resume from 1 checkpoint?", "Shrink older checkpoints"] and state.is_file()


@pytest.mark.parametrize("elem_id", BUTTONS)
def test_a_run_is_discarded_by_a_second_click(page, elem_id):
    click = Click(page[0], elem_id)
    shown, updates = click(**{"tp-unfinished-run": "story"})
    assert shown[0].startswith("Delete ") and shown[1] == click.label == BUTTONS[elem_id]
    assert len(updates) == 2  # the button and its question, and nothing else
