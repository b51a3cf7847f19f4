// Clicks inside our HTML: data-tp-set puts values into the form (through a hidden text box), data-tp-go jumps to a
// setting, also inside a folded part; data-tp-queue moves a waiting run; data-tp-box puts a text into a text box;
// data-tp-axis switches the curves between steps and epochs, data-tp-bell the sound at the end of a run.
// Rows of a list with data-tp-box are chosen by click, Enter or Space; arrow keys go to the next row.
// Changed settings get a reset button. Also fixes for Gradio's components: the Tab key leaves the chips of a menu,
// help stays inside the window, unfolded details stay open, and a tooltip shows a text that is cut off in its box.
() => {
  if (window.trainingProClicks) return;
  window.trainingProClicks = true;

  const written = (text, to) => {
    const box = document.querySelector(to + " textarea, " + to + " input");
    if (!box) return;
    const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), "value");
    own.set.call(box, text);
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  // The time makes the same wish a change when it is sent twice.
  const told = (wish, to = "#tp-wish") => written(JSON.stringify({ ...wish, at: Date.now() }), to);

  // From another tab, and where the form hides what its dataset does not need: the setting that was asked for is shown.
  const goTo = (key, part, tries = 20) => {
    const setting = document.querySelector("#tp-" + key);
    if (!document.querySelector("#tp-run")?.offsetParent) document.querySelector("#tp-tabs [role=tab]")?.click();
    setting?.style.setProperty("display", "block", "important");
    setting?.closest("[id^=tp-row-]")?.style.setProperty("display", "flex", "important");
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

  // A button that applies several suggestions applies those of the other buttons, too.
  const markUsed = (clicked) => {
    const used = JSON.parse(clicked.dataset.tpSet);
    const buttons = clicked.closest(".tp-card")?.querySelectorAll(".tp-use[data-tp-set]") ?? [clicked];
    for (const button of buttons) {
      const isUsed = Object.entries(JSON.parse(button.dataset.tpSet)).every(([key, value]) => used[key] === value);
      if (isUsed) button.setAttribute("aria-pressed", "true");
    }
  };

  const choose = (clicked) => {
    written(clicked.dataset.tpText, "#" + clicked.dataset.tpBox);
    if (!clicked.matches("tr")) return;
    clicked.parentElement.querySelectorAll("tr").forEach((row) => row.setAttribute("aria-selected", row === clicked));
    const shown = document.getElementById(clicked.dataset.tpShow);
    if (shown && shown.getBoundingClientRect().top > innerHeight - 120) shown.scrollIntoView({ behavior: "smooth" });
  };

  document.addEventListener("keydown", (event) => {
    const row = event.target.matches?.("tr[data-tp-box]") && event.target;
    const keys = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Enter: row, " ": row };
    if (!row || !(event.key in keys)) return;
    event.preventDefault();
    if (keys[event.key] === row) row.click();
    else keys[event.key]?.focus();
  });

  // A row or button of a list keeps the focus when its HTML is replaced.
  let focused = null;
  document.addEventListener("focusin", (event) => (focused = event.target.dataset?.tpFocus ?? null));
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest?.("[data-tp-focus]")) focused = null;
  });
  const refocus = () => {
    if (focused === null || document.activeElement !== document.body) return;
    document.querySelector(`[data-tp-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };

  // Choices that the browser keeps where it may: whether the curves count steps or epochs, and whether a sound and a
  // notice tell the end of a run. The style sheet shows the words of the chosen state.
  const STATES = { axis: ["step", "epoch"], bell: ["off", "on"] }, chosen = {};
  const stored = (use) => {
    try {
      return use(localStorage);
    } catch {
      return null; // the browser keeps nothing
    }
  };
  const show = (choice, state) => {
    chosen[choice] = state;
    for (const each of STATES[choice])
      document.documentElement.style.setProperty(`--tp-${choice}-${each}`, each === state ? "inline" : "none");
  };
  for (const choice in STATES) {
    const kept = stored((store) => store.getItem("training-pro-" + choice));
    show(choice, STATES[choice].includes(kept) ? kept : STATES[choice][0]);
  }
  const toggle = (choice) => {
    show(choice, STATES[choice].find((state) => state !== chosen[choice]));
    stored((store) => store.setItem("training-pro-" + choice, chosen[choice]));
  };

  // Browsers allow sound only after a click. The title of the page tells when a run goes on.
  let sound = null, wasRunning = false;
  const switchBell = () => {
    toggle("bell");
    if (chosen.bell === "off") return;
    sound ??= new AudioContext();
    window.Notification?.requestPermission();
  };
  const ring = () => {
    const tone = (sound ??= new AudioContext()).createOscillator();
    tone.connect(sound.destination);
    tone.start();
    tone.stop(sound.currentTime + 0.4);
    if (window.Notification?.permission === "granted") new Notification("Training PRO: the run has ended.");
  };
  setInterval(() => {
    const running = Boolean(document.querySelector("#tp-run .tp-live"));
    if (wasRunning && !running && chosen.bell === "on") ring();
    wasRunning = running;
  }, 1000);

  // What answers a click may be outside the window, such as on a phone.
  const ANSWERS = "#tp-answer, [id^=tp-][id$=-said], [id^=tp-][id$=-done]";
  let watching = null;
  const showResult = (of) => {
    watching?.disconnect();
    const parts = [...document.querySelectorAll(of)];
    // A result may be a card of its own, or new words in the card that is there already, since Gradio 6.
    const before = new Map([...document.querySelectorAll(".tp-card")].map((card) => [card, card.textContent]));
    const isNew = (part) => [...part.querySelectorAll(".tp-card")].some((card) => before.get(card) !== card.textContent);
    const observer = (watching = new MutationObserver((changes) => {
      const shown = parts.find((part) => changes.some(({ target }) => part.contains(target)) && isNew(part));
      if (shown) setTimeout(() => {
        // Only now: the result that it replaces may still be above it at first, or be drawn once more.
        if (watching !== observer || !isNew(shown)) return;
        observer.disconnect();
        watching = null;
        const { top } = shown.getBoundingClientRect();
        if (top < 0 || top > innerHeight - 120) shown.scrollIntoView({ behavior: "smooth", block: "start" });
      }, 700);
    }));
    parts.forEach((part) => observer.observe(part, { childList: true, characterData: true, subtree: true }));
    setTimeout(() => observer.disconnect(), 60000);
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("button[id^=tp-], [data-tp-queue]")) {
      showResult(event.target.closest("#tp-start") ? ANSWERS + ", #tp-run" : ANSWERS);
    }
    const ours = "[data-tp-set], [data-tp-go], [data-tp-queue], [data-tp-box], [data-tp-axis], [data-tp-bell]";
    const clicked = event.target.closest?.(ours);
    if (!clicked) return;
    event.preventDefault();
    if ("tpAxis" in clicked.dataset) toggle("axis");
    else if ("tpBell" in clicked.dataset) switchBell();
    else if (clicked.dataset.tpSet) {
      told({ set: JSON.parse(clicked.dataset.tpSet) });
      if (clicked.matches(".tp-use")) markUsed(clicked);
    }
    else if (clicked.dataset.tpBox) choose(clicked);
    else if (clicked.dataset.tpQueue) told({ queue: clicked.dataset.tpQueue }, "#tp-queue-wish");
    else goTo(clicked.dataset.tpGo, clicked.dataset.tpPart);
  });

  // While a job has the model, the webui would clear a message and drop it: it stays in its box, and a line says why.
  // A page that has not heard of the job for a minute lets the webui decide.
  const keepMessage = (event) => {
    const heard = Date.now() - (window.trainingProSeen ?? 0) < 60000;
    const busy = heard && document.querySelector("#tp-host-busy :is(textarea, input)")?.value;
    const sends = event.type === "click"
      ? event.target.closest?.("#Generate, #Regenerate, #Continue, #Impersonate")
      : event.key === "Enter" && !event.shiftKey && event.target.closest?.("#chat-input");
    if (!busy || !sends) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    document.querySelector("#tp-chat-busy")?.remove();
    const why = "Training PRO is using the model. Your message stays here until you send it again.";
    const line = Object.assign(document.createElement("p"), { id: "tp-chat-busy", role: "alert", textContent: why });
    document.querySelector("#chat-input")?.before(line);
    setTimeout(() => line.remove(), 15000);
  };
  for (const kind of ["click", "keydown"]) document.addEventListener(kind, keepMessage, true);

  document.addEventListener("change", (event) => {
    const share = event.target.dataset?.tpShare;
    if (share) told({ share: [share, event.target.value] });
  });

  // The remove icon of a chip handles every key itself, also Tab: keyboard users could not leave it.
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key === "Tab" && event.target.closest?.("[id^=tp-] .token-remove")) event.stopPropagation();
    },
    true,
  );

  const nameChips = () =>
    document.querySelectorAll("[id^=tp-] .token:not(.token-remove)").forEach((chip) => {
      const sign = chip.querySelector(".token-remove");
      const words = "Remove " + chip.innerText.trim();
      if (!sign || sign.title === words) return;
      sign.title = words;
      sign.setAttribute("aria-label", words);
    });

  // A text that does not fit into its box is shown in full under the mouse.
  const showCutOff = () =>
    document.querySelectorAll("[id^=tp-] input:is([type=text], :not([type]))").forEach((box) => {
      const full = box.scrollWidth > box.clientWidth ? box.value : "";
      if (box.title !== full) box.title = full;
    });

  // Help is shown above its setting, and is moved to the left if it would reach beyond the window.
  const keepInside = (event) => {
    const setting = event.target.closest?.(".tp-setting");
    if (!setting) return;
    requestAnimationFrame(() => {
      setting.style.removeProperty("--tp-moved");
      const help = [...setting.querySelectorAll("[data-testid=block-info] + div, :scope.tp-tick > div")].find(
        (part) => getComputedStyle(part).position === "absolute" && part.offsetWidth,
      );
      if (!help) return;
      const around = (setting.closest(".tp-form") ?? document.body).getBoundingClientRect();
      setting.style.setProperty("--tp-room", around.width + "px");
      const { left, right } = help.getBoundingClientRect();
      const edge = document.documentElement.clientWidth - 8;
      if (right > edge) setting.style.setProperty("--tp-moved", Math.max(edge - right, around.left - left) + "px");
    });
  };
  document.addEventListener("focusin", keepInside);
  document.addEventListener("pointerover", keepInside);

  // Details that the user has unfolded stay open when Gradio replaces their HTML or removes their attribute.
  const unfolded = new Set();
  const nameOf = (fold) => fold.dataset.tpFold ?? fold.querySelector("summary")?.textContent;
  document.addEventListener("click", (event) => {
    const fold = event.target.closest?.("[id^=tp-] details > summary")?.parentElement;
    if (!fold) return;
    if (fold.open) unfolded.delete(nameOf(fold)); // it is open until this click has been handled
    else unfolded.add(nameOf(fold));
  });
  new MutationObserver(() => {
    refocus();
    if (unfolded.size) document.querySelectorAll("[id^=tp-] details:not([open])").forEach((fold) => (fold.open = unfolded.has(nameOf(fold))));
  }).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["open"] });

  setInterval(() => {
    nameChips();
    showCutOff();
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
    document.querySelectorAll(".tp-back").forEach((back) => {
      const title = back.parentElement.querySelector("[data-testid=block-info]");
      if (!title?.offsetParent) return;
      const down = title.getBoundingClientRect().top - back.parentElement.getBoundingClientRect().top;
      back.style.top = Math.max(0, Math.round(down) - 3) + "px"; // next to the label, also if the label of the neighbor is taller
    });
  }, 700);
}
