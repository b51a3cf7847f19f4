"""The style sheet of the tab. It uses the colors of the theme, so light and dark mode both read well."""

CSS = """
.gradio-container {--tp-quiet: color-mix(in srgb, var(--body-text-color) 74%, transparent); --tp-tone: 40%;}
.dark .gradio-container, .dark.gradio-container {--tp-tone: 64%;}
.tp-form [data-testid="block-info"] {color: var(--body-text-color);}
.tp-card {border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 12px 14px; margin: 4px 0;
  background: var(--block-background-fill); color: var(--body-text-color); overflow-wrap: anywhere;}
.tp-card h4 {margin: 0 0 6px 0; font-size: 1.05em; color: var(--body-text-color);}
.tp-card p, .tp-card li {margin: 3px 0; color: var(--body-text-color);}
.tp-card ul {margin: 4px 0 4px 18px; padding: 0; list-style: disc;}
button.primary[id^=tp-] {background: var(--primary-700, #c2410c) !important; color: white !important;}
button.primary[id^=tp-]:hover {background: var(--primary-800, #9a3412) !important;}
button.stop[id^=tp-]:not([disabled]) {background: #b91c1c !important; color: white !important;}
#tp-tabs {--block-info-text-color: var(--tp-quiet); --body-text-color-subdued: var(--tp-quiet);}
#tp-tabs :is(.min_value, .max_value) {color: var(--tp-quiet);}
ul.tp-quiet {list-style-position: outside !important; padding-left: 1.4em !important;}
.tp-card ul.tp-quiet {padding-left: 0 !important;}
.form:has(> #tp-perplexity-stride) {column-gap: 16px;}
.tp-quiet {color: var(--tp-quiet) !important; font-size: 0.92em; overflow-wrap: anywhere;}
.tp-right:has(#tp-answer .tp-card) .tp-first {display: none;}
.tp-right:has(#tp-run .tp-live) :is(#tp-answer, div:has(> #tp-answer)) {order: 1;} /* does not push the run down */
.tp-outdated {display: none; position: sticky; top: 6px; z-index: 30; padding: 4px 8px;
  background: linear-gradient(var(--block-background-fill), var(--block-background-fill))
    var(--body-background-fill); border-left: 5px solid #c98a10; font-weight: 600;}
.tp-card summary {cursor: pointer;}
.tp-good {border-left: 5px solid #2f9e5b;} .tp-fair {border-left: 5px solid #c98a10;}
.tp-bad {border-left: 5px solid #cf3f3f;} .tp-live {border-left: 5px solid var(--color-accent);}
.tp-figures {display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 8px 0;}
.tp-figures div {min-width: 92px;}
.tp-figures b {display: block; font-size: 1.18em; color: var(--body-text-color);
  font-variant-numeric: tabular-nums;}
.tp-figures span {font-size: 0.85em; color: var(--tp-quiet);}
.tp-gauge {padding-left: 8px; border-left: 5px solid transparent; font-size: 0.92em;}
.tp-gauge.tp-good {border-left-color: #2f9e5b;} .tp-gauge.tp-fair {border-left-color: #c98a10;}
.tp-gauge.tp-bad {border-left-color: #cf3f3f; font-weight: 600;}
.tp-bar {height: 10px; border-radius: 5px; overflow: hidden; margin: 6px 0;
  background: var(--border-color-primary);}
.tp-bar i {display: block; height: 100%; background: var(--color-accent);}
.tp-curve {width: 100%; height: auto; max-height: 340px; display: block; margin-top: 6px; overflow: visible;}
.tp-recall {width: 100%; height: 22px; display: block; margin: 2px 0 8px;
  outline: 1px solid var(--border-color-primary); outline-offset: 1px;} .tp-recall-cell {fill: #2f9e5b;}
.tp-exam {width: 100%; height: auto; display: block;}
.tp-curve polyline {fill: none; stroke-linejoin: round;}
.tp-loss {stroke: #7fa6d6; stroke-width: 1.2; opacity: 0.75;} .tp-smoothed {stroke: #2f74c0; stroke-width: 2.4;}
.tp-rate {stroke: #c98a10; stroke-width: 1.4; stroke-dasharray: 5 4;}
.tp-grid {stroke: var(--border-color-primary); stroke-width: 1; opacity: 0.6;}
.tp-smoothed-dot {fill: #2f74c0;} .tp-kept {stroke: #8a3fb0; stroke-width: 1.8;} .tp-kept-dot {fill: #8a3fb0;}
.tp-mark {stroke: #2f9e5b; stroke-width: 3; opacity: 0.55;}
.tp-phase {stroke: #cf3f3f; stroke-width: 1.4; stroke-dasharray: 2 3;}
.tp-phase-name {fill: var(--body-text-color); font-size: 12px; paint-order: stroke; stroke-width: 4px;
  stroke: var(--block-background-fill);}
.tp-by-step {display: var(--tp-axis-step, inline);} .tp-by-epoch {display: var(--tp-axis-epoch, none);}
.tp-bell-on {display: var(--tp-bell-on, none);} .tp-bell-off {display: var(--tp-bell-off, inline);}
.tp-axis {fill: var(--tp-quiet); font-size: 12px;}
.tp-rate-axis {fill: color-mix(in srgb, #c98a10 50%, var(--body-text-color));}
.tp-hover {fill: transparent;} .tp-hover:hover {fill: #2f74c0;}
.tp-map {width: 100%; height: auto; display: block; margin: 4px 0;}
.tp-block, .tp-dementor {fill: #2f74c0;} .tp-odd {fill-opacity: 0.85;} .tp-even {fill-opacity: 0.5;}
.tp-overlap {fill: #c98a10;} .tp-heat {fill: #7a4fb5;} .tp-cut {stroke: #cf3f3f; stroke-width: 1.6;}
.tp-code {white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; padding: 8px 10px; margin: 4px 0;
  border: 1px solid var(--border-color-primary); border-radius: 6px;}
.tp-example {white-space: pre-wrap; line-height: 1.6;}
.tp-code span {display: inline-block; max-width: 100%;}
.tp-along {height: 22px; margin-bottom: 10px;}
.tp-key span {display: inline-block; margin-right: 12px;}
.tp-key i {display: inline-block; width: 18px; height: 3px; vertical-align: middle; margin-right: 5px;}
.tp-point {fill: currentColor;}
.tp-row {fill: var(--tp-topic); fill-opacity: 0.75;}
.tp-ring {fill: none; stroke: var(--tp-topic); stroke-width: 2;}
/* A shadow at each side that can be scrolled to; without overflow the scroll timeline is inactive. */
.tp-wide {overflow-x: auto; overflow-wrap: normal; animation: tp-more auto linear;
  animation-timeline: scroll(self inline);}
@keyframes tp-more {
  from {box-shadow: inset -14px 0 10px -10px rgba(110, 110, 110, 0.6);}
  10%, 90% {box-shadow: inset 14px 0 10px -10px rgba(110, 110, 110, 0.6),
    inset -14px 0 10px -10px rgba(110, 110, 110, 0.6);}
  to {box-shadow: inset 14px 0 10px -10px rgba(110, 110, 110, 0.6);}
}
.tp-table {width: 100%; border-collapse: collapse; margin: 6px 0;}
.tp-table, .tp-table tr, .tp-table tbody {border: none !important; outline: none !important;}
.tp-table td, .tp-table th {padding: 3px 8px 3px 0 !important; text-align: left; color: var(--body-text-color);
  border: none !important; border-bottom: 1px solid var(--border-color-primary) !important; vertical-align: top;
  font-weight: inherit;}
.tp-table th {color: var(--tp-quiet); font-size: 0.92em;}
.tp-run-list tbody tr[data-tp-box] {cursor: pointer;}
.tp-run-list tbody tr[data-tp-box]:is(:hover, :focus-visible) {background: var(--background-fill-secondary);}
.tp-run-list tr:focus-visible {outline: 2px solid var(--color-accent) !important; outline-offset: -2px;}
.tp-run-list tr[aria-selected="true"] {box-shadow: inset 4px 0 0 var(--color-accent);
  background: color-mix(in srgb, var(--color-accent) 14%, transparent) !important;}
.tp-run-list :is(td, th) {padding: 5px 6px !important;}
.tp-run-list :is(td, th):not(:first-child) {text-align: right; font-variant-numeric: tabular-nums;}
.tp-run-list td:first-child {overflow-wrap: anywhere; min-width: 8em;}
.tp-run-list td:nth-child(n + 3) {white-space: nowrap;}
.tp-run-list td:nth-child(2) {min-width: 5.6em;}
.tp-run-actions button {font-size: 0.95rem; padding: 6px 10px !important;}
.tp-run-list td span {display: block; font-size: 0.85em; color: var(--tp-quiet);}
.tp-run-list th button {padding: 0; border: none; background: none; color: inherit; font: inherit;
  text-align: inherit; cursor: pointer;}
.tp-run-list th:not([aria-sort="none"]) button {color: var(--body-text-color); font-weight: 600;}
.tp-card ul.tp-parts {list-style: none; margin-left: 0; max-height: 190px; overflow-y: auto;}
.tp-parts .tp-use {margin: 1px 6px 1px 0;}
#tp-runs-side:not(:has(#tp-runs-one .tp-card)) .tp-run-actions {display: none !important;}
@media (min-width: 1000px) {#tp-runs-side {position: sticky; top: 8px; align-self: flex-start;}}
.tp-lengths {width: 100%; height: 64px; display: block;} .tp-lengths rect {fill: #2f74c0;}
.tp-form .form, .tp-form .block, .tp-form .row {overflow: visible !important;}
/* Gradio 4 paints a setting's background over the border of its frame, which has the same one: delete it with
   Gradio 4.37. */
.tp-form .form > .block {background: transparent !important;}
.tp-setting {position: relative;}
.tp-form .form, .form:has(> .tp-answer) {column-gap: 8px; background: var(--block-background-fill);}
.tp-form .form > .tp-setting:not(.tp-tick) {display: flex; flex-direction: column; justify-content: flex-end;}
.tp-form .label-wrap, .tp-right .label-wrap {gap: 10px; text-align: left; box-sizing: border-box;}
.tp-form .label-wrap .icon, .tp-right .label-wrap .icon {flex: none; align-self: center;}
.tp-form .label-wrap > span:first-child, .tp-right .label-wrap > span:first-child {flex: 1 1 0; min-width: 0;}
.tp-setting [data-testid="block-info"]::after, .tp-tick label::after {content: "?"; display: inline-block;
  margin-left: 4px; width: 15px; height: 15px; line-height: 15px; border-radius: 50%; text-align: center;
  font-size: 11px; color: var(--tp-quiet); border: 1px solid var(--border-color-primary);}
.tp-setting [data-testid="block-info"] {margin-bottom: 4px;}
.tp-setting [data-testid="block-info"] + div, .tp-tick > div:not(.wrap) {display: none; position: absolute;
  pointer-events: none; left: var(--tp-moved, 0); bottom: calc(100% - 4px); z-index: 60; width: max-content;
  max-width: min(420px, 86vw, var(--tp-room, 86vw));
  padding: 8px 11px; border-radius: 7px; font-size: 0.9rem; line-height: 1.4; white-space: normal;
  color: var(--body-text-color) !important; background: var(--background-fill-primary);
  border: 1px solid var(--color-accent); box-shadow: 0 4px 14px rgba(0, 0, 0, 0.22);}
.tp-setting [data-testid="block-info"]:hover + div,
.tp-setting:focus-within:not(:has([aria-expanded="true"])):not(:has(ul.options)) [data-testid="block-info"] + div,
.tp-tick:hover > div:not(.wrap), .tp-tick:focus-within > div:not(.wrap) {display: block;}
/* The help under the mouse replaces that of the setting with the focus. */
.tp-form:has(.tp-setting [data-testid="block-info"]:hover, .tp-tick:hover) .tp-setting:focus-within:not(:hover)
  :is([data-testid="block-info"] + div, .tp-tick > div:not(.wrap)) {display: none !important;}
.tp-card li:has(> details) {list-style: none;}
.tp-chart {width: 100%; max-width: 806px; height: auto; display: block; margin: 0 auto 8px auto;}
.tp-chart polyline {fill: none; stroke-width: 1.8; stroke-linejoin: round;}
#tp-samples :is(td, th) {min-width: 8em; white-space: pre-wrap; overflow-wrap: anywhere;}
#tp-samples :is(td, th):first-child {min-width: 5em; color: var(--tp-quiet);}
.tp-rows :is(td, th) {white-space: nowrap;}
.tp-rows :is(td, th):is(:nth-child(3), :nth-child(4)) {min-width: 11em; white-space: normal;}
#tp-perplexity-found summary {margin-top: 6px; cursor: pointer;}
.tp-hidden, .form:not(:has(> :not(.tp-hidden))) {display: none !important;}
.tp-form:has(#tp-data .token) .tp-no-data {display: none;}
/* Clips as before, but lets sticky children work. */
.gradio-container:has(.tp-first-buttons) {overflow: clip !important;}
@media (max-width: 1100px) {.tp-axis, .tp-phase-name {font-size: 15px;}}
/* On a phone the charts shrink but their numbers must not: they are drawn inside, above the grid lines. */
@media (max-width: 600px) {
  .tp-axis {font-size: 24px; paint-order: stroke; stroke: var(--background-fill-primary); stroke-width: 5px;}
  .tp-phase-name {font-size: 24px;}
  .tp-axis[text-anchor="end"] {text-anchor: start; transform: translate(-36px, -8px);}
  .tp-rate-axis {text-anchor: end; transform: translate(46px, -8px);}
  .tp-chart {overflow: visible; margin-top: 12px;}
  /* Check and Start stay visible while the form is scrolled. */
  .tp-right {display: contents !important;}
  .tp-right > div {width: 100%;}
  .tp-first-buttons, .tp-run-buttons {align-items: stretch !important; bottom: 0; z-index: 45;
    padding: 8px 0; gap: 8px; background: var(--background-fill-primary);}
  .tp-first-buttons button, .tp-run-buttons button {flex: 1 1 54px !important; min-width: 54px !important;
    padding: 6px !important; white-space: normal !important; font-size: 0.9rem; line-height: 1.25;}
  .tp-first-buttons {position: sticky;}
  /* During a run, Stop and the buttons next to it stay visible instead. */
  .tp-right:has(#tp-stop:not([disabled])) .tp-first-buttons {position: static;}
  .tp-right:has(#tp-stop:not([disabled])) .tp-run-buttons {position: sticky;}
}
.tp-answer textarea {font-size: 1.02em; line-height: 1.45;}
.tp-buttons {flex-wrap: wrap; align-items: flex-end !important;}
.tp-buttons button {min-width: max-content !important; flex: 1 1 92px; padding: 8px 12px; white-space: nowrap;}
.tp-buttons > .form {flex: 2 1 160px !important;}
/* Buttons next to a field are aligned with its bottom edge and keep their own height. */
#tp-preset-save, #tp-preset-delete, #tp-load, #tp-load + button, .tp-beside-field {align-self: flex-end;
  flex: 0 1 auto !important; min-width: max-content !important;}
/* No commas inside of :has: Gradio puts its own prefix after each comma. */
:is(.tp-said, #tp-start-from-said, #tp-name-said, #tp-answer, #tp-data-said, #tp-together, #tp-schedule-drawn,
  #tp-try-said, #tp-preset-said):not(:has(p)):not(:has(.tp-card)):not(:has(svg)):not(:has(li)) {
  display: none !important;}
#tp-samples:not(:has(table)) {display: none !important;}
#tp-load {white-space: nowrap;}
#tp-marks {display: none !important;}
/* Above the labels, which have z-index 40 in Gradio 4, and below the lists of its menus. */
.tp-back {position: absolute; top: 6px; right: 8px; z-index: 41; padding: 0 6px; font-size: 0.8rem;
  line-height: 1.5; border-radius: 9px;
  cursor: pointer; color: var(--body-text-color); background: var(--background-fill-secondary);
  border: 1px solid var(--border-color-primary);}
.tp-setting:has(> .tp-back) [data-testid="block-info"] {display: block; margin-right: 32px;}
[id^="tp-"] .secondary-wrap input {padding-right: 26px; text-overflow: ellipsis;}
.tp-setting:has(> .tp-back) {box-shadow: inset 3px 0 0 var(--color-accent);}
.tp-pointed-at {outline: 2px solid var(--color-accent); outline-offset: 2px;}
.tp-use {margin: 0 0 0 6px; padding: 1px 10px; border-radius: 9px; cursor: pointer; font-size: 0.92em;
  color: var(--body-text-color); background: var(--background-fill-secondary);
  border: 1px solid var(--color-accent);}
.tp-use[aria-pressed="true"] {font-weight: 600;
  background: color-mix(in srgb, var(--color-accent) 22%, var(--background-fill-primary));}
.tp-use[data-tp-set][aria-pressed="true"]::before {content: "\\2713  ";}
.tp-suggested .tp-use, .tp-card :is(li, p) > .tp-use {margin: 3px 0 3px 6px;}
.tp-card a[data-tp-go] {padding: 0; color: inherit; text-decoration: underline; cursor: pointer;}
.tp-share {display: inline-block; margin: 2px 16px 2px 0; font-size: 0.92em;
  color: var(--tp-quiet);}
.tp-share input {width: 5.2em; padding: 2px 6px; border-radius: 6px; color: var(--body-text-color);
  background: var(--input-background-fill); border: 1px solid var(--border-color-primary);}
.tp-card ol.tp-queue {margin: 4px 0 4px 20px; padding: 0; list-style: decimal;}
.tp-card ol.tp-queue li {line-height: 1.7;}
.tp-report {color-scheme: light;} .dark .tp-report {color-scheme: dark;}
.tp-report {width: 100%; height: 80vh; border: 1px solid var(--border-color-primary); border-radius: 6px;}
.tp-small {width: 100%; height: 46px; display: block;}
.tp-small polyline {fill: none; stroke: #c98a10; stroke-width: 2; vector-effect: non-scaling-stroke;}
.tp-small line {stroke: var(--border-color-primary); stroke-width: 1; vector-effect: non-scaling-stroke;}
"""
