"""The page object of the browser tests: all selectors of the page are in this module."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from playwright.sync_api import Browser, Error, Locator, Page

SCREENSHOTS = Path(__file__).resolve().parents[1] / "screenshots"
PATIENCE_SECONDS = 120
Result = TypeVar("Result")

ENDED = ("finished", "stopped", "failed")

# The smoothed curve: its number of points, the first step in its tooltips, and the last step in its label.
CURVE = """() => {
    const drawing = document.querySelector('#tp-run svg');
    const line = drawing && drawing.querySelector('.tp-smoothed');
    if (!line) return null;
    const told = [...drawing.querySelectorAll('title')].map(t => /^step (\\d+): loss/.exec(t.textContent));
    const steps = told.filter(Boolean).map(m => Number(m[1]));
    const last = Number(/ over (\\d+) of /.exec(drawing.getAttribute('aria-label'))[1]);
    return [line.points.numberOfItems, Math.min(...steps), last];
}"""
# Whether an element's box is inside the window.
INSIDE = """e => {
    const box = e.getBoundingClientRect();
    const wide = box.left >= 0 && box.right <= document.documentElement.clientWidth;
    return wide && box.top >= 0 && box.bottom <= innerHeight;
}"""
# Whether a part begins inside the window, and is there at all.
BEGINS_INSIDE = """e => {
    const box = (e.querySelector('.tp-card') ?? e).getBoundingClientRect();
    return box.height > 0 && box.top >= -4 && box.top <= innerHeight - 40;
}"""
# Tables with a scroll shadow although they do not overflow, or without one although they do.
SHADOWS = """() => [...document.querySelectorAll('.tp-wide')].filter(e => e.checkVisibility()).filter(e =>
    (e.scrollWidth > e.clientWidth) !== (getComputedStyle(e).boxShadow !== 'none'))
    .map(e => e.outerHTML.slice(0, 99))"""
# Elements that reach beyond the right edge and are not clipped or scrolled by a parent.
TOO_WIDE = """() => {
    const edge = document.documentElement.clientWidth + 1;
    const held = e => {
        for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
            if (getComputedStyle(p).overflowX !== 'visible') return true;
        return false;
    };
    const wide = [...document.querySelectorAll('body *')].filter(e =>
        e.checkVisibility() && e.getBoundingClientRect().right > edge && !held(e));
    const scrolls = document.documentElement.scrollWidth > edge || document.body.scrollWidth > edge;
    return [...wide.map(e => `${e.tagName} ${e.id} ${e.className}`), ...(scrolls ? ['the page scrolls'] : [])];
}"""

# Menus whose text may run under their arrow.
UNDER_THE_ARROW = """() => [...document.querySelectorAll('.secondary-wrap')].filter(e => {
    const box = e.querySelector('input'), arrow = e.querySelector('.icon-wrap, .dropdown-arrow, svg');
    if (!box || !arrow || !arrow.checkVisibility()) return false;
    const words = box.getBoundingClientRect().right - parseFloat(getComputedStyle(box).paddingRight);
    return words > arrow.getBoundingClientRect().left + 1;
}).map(e => e.closest('[id]').id)"""
# Texts of Training PRO with a contrast of less than 4.5 to 1.
FAINT = """() => {
    const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const over = (colours) => {
        pen.clearRect(0, 0, 1, 1);
        for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
    const behind = e => {
        const found = [];
        for (let p = e; p; p = p.parentElement) found.unshift(getComputedStyle(p).backgroundColor);
        return ['white', ...found];
    };
    const ours = '.tp-card *, .tp-quiet, .tp-gauge, .tp-use, .tp-back, .tp-share, .tp-form [data-testid]';
    const faint = [];
    for (const e of document.querySelectorAll(ours)) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility() || e.closest('title')) continue;
        const ground = behind(e), colour = e instanceof SVGElement ? 'fill' : 'color';
        const a = light(over(ground)), b = light(over([...ground, getComputedStyle(e)[colour]]));
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) faint.push(`${contrast.toFixed(1)}: ${e.textContent.trim().slice(0, 60)}`);
    }
    return faint;
}"""


@dataclass(frozen=True)
class Curve:
    """The drawn smoothed loss: its number of points, and its first and last step."""

    points: int
    first: int
    last: int


OUR_TAGS = re.compile(r"</(?:a|button|details|div|li|p|span|strong|table|ul)>")


class TrainingPage:
    """One open page; `errors` are its JavaScript errors."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        self._beat = page.locator("#tp-beat")
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(
        self, url: str, *, left: str = "", theme: str = "light", tab: str = "", patience: float = PATIENCE_SECONDS
    ) -> TrainingPage:
        """Open the page. `left` is the name in the restored form; `tab` is our tab in the webui."""
        self._page.goto(f"{url}?__theme={theme}")
        if tab:
            self.tab(tab)
        if left:
            self.wait_for(lambda: self._beat.count() and self._beat.text_content(), "a first beat")
            self.wait_for(lambda: self.holds("name", left), "the form as it was left", patience)
        return self

    def log_in(self, user: str, password: str) -> None:
        """Log in on the page of Gradio."""
        self._page.get_by_label("username").fill(user)
        self._page.get_by_label("password").fill(password)
        self._page.get_by_role("button", name="Login").click()

    def reload(self) -> None:
        self._page.reload()

    def close(self) -> None:
        self._page.context.close()

    @property
    def closed(self) -> bool:
        return self._page.is_closed()

    def tab(self, name: str) -> None:
        self._page.get_by_role("tab", name=name, exact=True).click()

    def fill(self, **values: object) -> None:
        """Fill in settings by key; a dataset is chosen by name."""
        for key, value in values.items():
            if key != "data":
                self.box(f"tp-{key}").fill(str(value))
            elif not self.holds(key, value):
                self.pick("tp-data", str(value))

    def write(self, box: str, text: str) -> None:
        self.box(f"tp-{box}").fill(text)

    def written(self, box: str) -> str:
        """The text of a box or a setting."""
        return self.box(f"tp-{box}").input_value()

    def chosen(self, elem_id: str) -> list[str]:
        """The selection of a menu with multiple choices."""
        chips = self._page.locator(f"#{elem_id} .token").all_inner_texts()
        return [chip.strip() for chip in chips]

    def tooltip(self, key: str) -> str:
        """What the browser shows when the mouse is over the box of a setting."""
        return self.box(f"tp-{key}").get_attribute("title") or ""

    def choose(self, key: str, words: str) -> None:
        """Choose an option of a menu."""
        self.pick(f"tp-{key}", words)

    def unfold(self, part: str) -> None:
        """Unfold a part of the page, by its id."""
        title = self._page.locator(f"#tp-{part} .label-wrap")

        def is_open() -> bool:
            if "open" not in (title.get_attribute("class") or "").split():
                title.click()
                self._page.wait_for_timeout(300)  # let pending updates of the form arrive
            return "open" in (title.get_attribute("class") or "").split()

        self.wait_for(is_open, f"{part!r} unfolded")

    def way_back(self, key: str) -> Locator:
        """The reset button of a changed setting."""
        return self._page.locator(f"#tp-{key} .tp-back")

    def link(self, part: str, words: str) -> Locator:
        """A link or a button inside our HTML."""
        return self._page.locator(f"#tp-{part}").get_by_text(words, exact=True)

    def suggestion(self, key: str) -> Locator:
        """The button that applies a suggestion of Check."""
        return self._page.locator(f"#tp-answer .tp-use[data-tp-set*='{key}']").first

    def all_suggestions(self) -> Locator:
        """The button that applies all suggestions of Check."""
        return self._page.locator("#tp-answer .tp-use", has_text=re.compile("Use (all|both)"))

    def in_queue(self, words: str) -> Locator:
        """A button of a waiting run, such as 'Up: b'."""
        return self._page.get_by_label(words, exact=True)

    def helpful(self, key: str) -> Locator:
        """The button of a remedy after a failure."""
        return self._page.locator(f"#tp-run .tp-use[data-tp-set*='{key}']").first

    def focused(self) -> str:
        """The setting that has the focus."""
        elem_id = self._page.evaluate("document.activeElement.closest('.tp-setting')?.id ?? ''")
        return str(elem_id).removeprefix("tp-")

    def focus(self, key: str) -> None:
        """Focus a setting, with its menu closed, and no mouse on another one, whose help would show instead."""
        self._page.mouse.move(0, 0)
        box = self.box(f"tp-{key}")
        box.focus()
        box.press("Escape")

    def tabs_until(self, key: str, *, back: bool = False, max_presses: int = 20) -> list[str]:
        """Press Tab until this setting has the focus; returns all settings that had it."""
        focused: list[str] = []
        while key not in focused and len(focused) < max_presses:
            self._page.keyboard.press("Shift+Tab" if back else "Tab")
            focused.append(self.focused())
        return focused

    def offers(self, elem_id: str) -> list[str]:
        """The options of a menu."""
        box = self.box(elem_id)
        box.click()
        names = self._page.locator(f"#{elem_id}").get_by_role("option").all_inner_texts()
        box.press("Escape")
        box.blur()
        return [name.strip() for name in names]

    def signs(self, key: str) -> list[str]:
        """The labels of the remove icons of the chosen names."""
        icons = self._page.locator(f"#tp-{key} .token .token-remove").all()
        return [icon.get_attribute("aria-label") or "" for icon in icons]

    def help_is_inside(self, key: str) -> bool:
        return bool(self._page.locator(f"#tp-{key} [data-testid='block-info'] + div").first.evaluate(INSIDE))

    def in_sight(self, button: str) -> bool:
        return bool(self.button(button).evaluate(INSIDE))

    def part_in_sight(self, part: str) -> bool:
        return bool(self._page.locator(f"#tp-{part}").evaluate(BEGINS_INSIDE))

    def end_window_at(self, button: str) -> None:
        """Scroll until the button is the last thing in the window."""
        self.button(button).evaluate("button => button.scrollIntoView({ block: 'end' })")

    def shadows_without_need(self) -> list[str]:
        """Tables with a needless or missing scroll shadow."""
        tables: list[str] = self._page.evaluate(SHADOWS)
        return tables

    def runs(self) -> list[str]:
        """The names in the list of runs, from top to bottom."""
        return self._page.locator("#tp-runs-table tbody tr b").all_inner_texts()

    def run_row(self, name: str) -> Locator:
        """The row of a run in the list."""
        return self._page.locator(f'#tp-runs-table tbody tr[data-tp-text="{name}"]')

    def sort_runs(self, column: str) -> None:
        """Click the head of a column, and wait for the list in its new order."""
        head = self._page.locator("#tp-runs-table th", has_text=column)
        before = head.get_attribute("aria-sort")
        head.get_by_role("button").click()
        self.wait_for(lambda: head.get_attribute("aria-sort") != before, f"another order by {column}")

    def press_key(self, key: str) -> None:
        self._page.keyboard.press(key)

    def share(self, name: str, per_cent: int) -> None:
        """Set the share of a dataset."""
        box = self._page.locator(f'[data-tp-share="{name}"]')
        box.fill(str(per_cent))
        box.press("Tab")

    def add_file(self, path: Path) -> None:
        with self._page.expect_file_chooser() as chooser:
            self._page.locator("#tp-add").click()
        chooser.value.set_files(path)

    def tick(self, elem_id: str, words: str) -> None:
        self._page.locator(f"#{elem_id}").get_by_label(words, exact=False).first.check()

    def press(self, button: str) -> None:
        self.button(button).click(timeout=PATIENCE_SECONDS * 1000)

    def send(self, message: str = "") -> None:
        """Send a message in the webui's chat; by default, what is still in its box."""
        if message:
            self.box("chat-input").fill(message)
        self._page.locator("#Generate").click()

    def chat(self) -> tuple[str, str]:
        """The message in the box of the webui's chat, and the reply."""
        return self.box("chat-input").input_value(), self.box("webui-reply").input_value()

    def label(self, button: str) -> str:
        return self.button(button).inner_text()

    def has(self, button: str) -> bool:
        return self.button(button).count() > 0

    def shown(self, part: str) -> bool:
        """Whether a button, a setting or another part is visible."""
        return self.button(part).is_visible()

    def can_press(self, button: str) -> bool:
        return self.button(button).is_enabled()

    def words(self, part: str) -> str:
        """The visible words of a part, and its folded notes. A tag among them is HTML escaped by mistake."""
        element = self._page.locator(f"#tp-{part}")
        folded = element.locator("details[data-tp-fold='notes']:not([open])").all_text_contents()
        words = "\n".join([element.inner_text(), *folded])
        assert not OUR_TAGS.search(words), words
        return words

    def text(self, part: str) -> str:
        """The visible text of a part, whatever it holds."""
        return self._page.locator(f"#tp-{part}").inner_text()

    def everything(self) -> str:
        return self._page.locator("body").inner_text()

    def wait_for(
        self, condition: Callable[[], Result], description: str, seconds: float = PATIENCE_SECONDS
    ) -> Result:
        """Wait until `condition` returns something true, and return it."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not after {seconds:g} seconds: {description}\n\n{self.everything()}")
            self._page.wait_for_timeout(100)
        return result

    def pause(self, seconds: float) -> None:
        self._page.wait_for_timeout(seconds * 1000)

    def wait_for_words(self, part: str, *words: str) -> str:
        """Wait until a part contains all these words, and return its text."""
        self.wait_for(lambda: all(word in self.words(part) for word in words), f"{words} in {part!r}")
        return self.words(part)

    def check(self) -> str:
        """Press Check, and return the report."""
        self.press("check")
        return self.wait_for_words("answer", "Check: ")

    def characters_lost(self) -> int:
        """The number of lost characters in the report."""
        figure = re.search(r"([\d,]+)\s*\ncharacters lost in slicing", self.words("answer"))
        assert figure, self.words("answer")
        return int(figure[1].replace(",", ""))

    def curve(self) -> Curve | None:
        try:
            values = self._page.evaluate(CURVE)
        except Error:  # the page is reloading
            return None
        return Curve(*values) if values else None

    def wait_for_curve(self, after: int = 0) -> Curve:
        """Wait until the curve goes beyond this step."""

        def grown() -> Curve | None:
            curve = self.curve()
            return curve if curve is not None and curve.last > after else None

        return self.wait_for(grown, f"a curve beyond step {after}")

    def start(self, name: str, **values: object) -> Curve:
        """Fill in the form, press Start, and wait for the first points of the curve."""
        self.fill(**{"name": name, "data": "story.txt", "cutoff": 64, **values})
        self.press("start")
        self.wait_for_words("run", f"Training '{name}'")
        return self.wait_for_curve()

    def stop(self, name: str) -> str:
        self.press("stop")
        return self.wait_until_ended(name, "stopped")

    def wait_until_ended(self, name: str, outcome: str = "finished") -> str:
        self.wait_for(lambda: any(self._ended(name, o) for o in ENDED), f"the end of {name!r}")
        assert self._ended(name, outcome), self.words("run")
        return self.words("run")

    def too_wide(self) -> list[str]:
        """Elements that make the page scroll sideways."""
        elements: list[str] = self._page.evaluate(TOO_WIDE)
        return elements

    def under_the_arrow(self) -> list[str]:
        """Menus whose text may run under their arrow."""
        menus: list[str] = self._page.evaluate(UNDER_THE_ARROW)
        return menus

    def help_is_open(self, key: str) -> bool:
        return self._page.locator(f"#tp-{key} [data-testid='block-info'] + div").first.is_visible()

    def open_menu(self, key: str) -> None:
        self.box(f"tp-{key}").click()
        self._page.wait_for_timeout(300)

    def faint(self) -> list[str]:
        """Texts with too little contrast."""
        texts: list[str] = self._page.evaluate(FAINT)
        return texts

    def photograph(self, name: str) -> None:
        import gradio

        SCREENSHOTS.mkdir(exist_ok=True)
        self._page.screenshot(path=SCREENSHOTS / f"{name}-gradio-{gradio.__version__}.png", full_page=True)

    def _ended(self, name: str, outcome: str) -> bool:
        return f"Training '{name}': {outcome}" in self.words("run")

    def button(self, name: str) -> Locator:
        return self._page.locator(f"#tp-{name}")

    def box(self, elem_id: str) -> Locator:
        return self._page.locator(f"#{elem_id} input, #{elem_id} textarea").first

    def holds(self, key: str, value: object) -> bool:
        if key == "data":  # only the selection: a closing menu still shows all names for a moment
            return any(str(value) in chip for chip in self.chosen("tp-data"))
        return self.box(f"tp-{key}").input_value() == str(value)

    def pick(self, elem_id: str, name: str) -> None:
        box = self.box(elem_id)
        box.click()
        self._page.get_by_role("option", name=name).first.click()
        box.press("Escape")
        box.blur()  # a click on a focused box would not open the menu


def new_page(browser: Browser, width: int = 1200) -> TrainingPage:
    return TrainingPage(browser.new_context(viewport={"width": width, "height": 1000}).new_page())
