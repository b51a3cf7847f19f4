// What a click inside drawn HTML does: data-tp-set puts values into the form (by way of a hidden text box),
// data-tp-go jumps to a setting, also inside a folded part; data-tp-queue moves a run that waits; and settings that are changed get their way back.
() => {
  if (window.trainingProClicks) return;
  window.trainingProClicks = true;

  const told = (wish, to = "#tp-wish") => {
    const box = document.querySelector(to + " textarea, " + to + " input");
    if (!box) return;
    const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), "value");
    own.set.call(box, JSON.stringify({ ...wish, at: Date.now() })); // the same wish twice is a change, too
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };

  const goTo = (key, part, tries = 20) => {
    const setting = document.querySelector("#tp-" + key);
    if (setting?.offsetParent) {
      setting.scrollIntoView({ block: "center", behavior: "smooth" });
      setting.querySelector("input, textarea, select")?.focus({ preventScroll: true });
      setting.classList.add("tp-pointed-at");
      setTimeout(() => setting.classList.remove("tp-pointed-at"), 2500);
      return;
    }
    const title = part && document.querySelector("#" + part + " .label-wrap:not(.open)");
    if (title) title.click();
    if (tries > 0) setTimeout(() => goTo(key, part, tries - 1), 100);
  };

  document.addEventListener("click", (event) => {
    const clicked = event.target.closest?.("[data-tp-set], [data-tp-go], [data-tp-queue]");
    if (!clicked) return;
    event.preventDefault();
    if (clicked.dataset.tpSet) told({ set: JSON.parse(clicked.dataset.tpSet) });
    else if (clicked.dataset.tpQueue) told({ queue: clicked.dataset.tpQueue }, "#tp-queue-wish");
    else goTo(clicked.dataset.tpGo, clicked.dataset.tpPart);
  });

  document.addEventListener("change", (event) => {
    const share = event.target.dataset?.tpShare;
    if (share) told({ share: [share, event.target.value] });
  });

  setInterval(() => {
    const changed = new Map();
    document.querySelectorAll("#tp-marks [data-tp-key]").forEach((mark) => changed.set(mark.dataset.tpKey, mark));
    document.querySelectorAll(".tp-back").forEach((back) => {
      const mark = changed.get(back.dataset.tpKey);
      if (mark && back.textContent === mark.textContent) changed.delete(back.dataset.tpKey);
      else back.remove();
    });
    changed.forEach((mark, key) => {
      const setting = document.querySelector("#tp-" + key);
      if (setting) setting.appendChild(Object.assign(mark.cloneNode(true), { className: "tp-back" }));
    });
  }, 700);
}
