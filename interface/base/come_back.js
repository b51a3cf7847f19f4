// A page whose stream broke (a closed laptop lid) gets no new beat. A click on its hidden button opens a new stream.
// Gradio 4.37 never reopens a stream, so a visible page is then reloaded; the form keeps its values. When that version
// goes, delete the last line of the function.
() => {
  if (window.trainingProBeat) return;
  let seen = "", since = Date.now(), tries = 0, title = document.title;
  window.trainingProBeat = setInterval(() => {
    const beat = document.querySelector("#tp-beat");
    if (!beat) return;
    const short = beat.querySelector("b")?.textContent;
    if (short) document.title = short + " - Training PRO";
    else if (document.title.endsWith(" - Training PRO")) document.title = title;
    if (beat.textContent.match(/[0-9]+ *$/)?.[0] !== seen) {
      seen = beat.textContent.match(/[0-9]+ *$/)?.[0]; since = window.trainingProSeen = Date.now(); tries = 0; return;
    }
    if (Date.now() - since < 20000) return;
    since = Date.now();
    if (tries++ < 1) { document.querySelectorAll("#tp-again, .tp-again").forEach((again) => again.click()); return; }
    if (document.querySelector("#tp-run").offsetParent) fetch(location.href).then(() => location.reload());
  }, 1000);
}
