"""Style sheet of report.html, for light and dark mode, narrow screens and print."""

from __future__ import annotations

CSS = """
:root {color-scheme: light dark; --ground: #f6f7f9; --sheet: #ffffff; --text: #1d2530; --quiet: #5a6675;
  --line: #d9dfe7; --good: #2f9e5b; --fair: #c98a10; --bad: #cf3f3f; --loss: #7fa6d6; --smoothed: #2f74c0;
  --rate: #b07a10; --kept: #8a3fb0; --mark: #2f9e5b;}
@media (prefers-color-scheme: dark) {:root {--ground: #12161c; --sheet: #1a2029; --text: #e6ebf2;
  --quiet: #a3afbf; --line: #323c4a; --loss: #5f83b0; --smoothed: #6aaaf0; --rate: #dba83c; --kept: #c487e6;
  --mark: #4cc27c; --good: #4cc27c; --fair: #dba83c; --bad: #ee6b6b;}}
* {box-sizing: border-box;}
body {margin: 0; padding: 28px 16px 48px; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere;}
main {max-width: 960px; margin: 0 auto;}
header, section {background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; padding: 18px 22px;
  margin-bottom: 16px;}
header {border-left: 6px solid var(--mood);}
header.finished {--mood: var(--good);} header.stopped {--mood: var(--fair);} header.failed {--mood: var(--bad);}
h1 {font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px;}
h1 span {font-size: 0.95rem; font-weight: 600; color: var(--mood); white-space: nowrap; margin-left: 8px;}
h2 {font-size: 1.12rem; margin: 0 0 10px;}
h3 {font-size: 1rem; margin: 18px 0 6px;} h3:first-of-type {margin-top: 0;}
p {margin: 4px 0;} .quiet {color: var(--quiet);}
.verdict {margin-top: 10px; padding-top: 10px; border-top: 1px solid var(--line);}
dl.figures {display: grid; grid-template-columns: repeat(auto-fill, minmax(176px, 1fr)); gap: 12px 18px;
  margin: 16px 0 0;}
dl.figures div {display: flex; flex-direction: column-reverse;}
dl.figures dt {font-size: 0.86rem; color: var(--quiet);}
dl.figures dd {margin: 0; white-space: nowrap; font-size: 1.14rem; font-weight: 600;
  font-variant-numeric: tabular-nums;}
.wide {overflow-x: auto;} .wide th {overflow-wrap: normal;}
table {width: 100%; border-collapse: collapse;}
th, td {text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line);}
tr:last-child td {border-bottom: none;}
th {font-size: 0.86rem; font-weight: 600; color: var(--quiet);}
td.clock, td.number {white-space: nowrap; font-variant-numeric: tabular-nums;}
td.clock, td.quiet {color: var(--quiet);}
td.advice {font-weight: 600;}
.prompt {white-space: pre-wrap; border-left: 3px solid var(--smoothed); padding-left: 12px; margin: 0 0 10px;}
.answers + .prompt {margin-top: 24px;}
.answers {display: grid; grid-template-columns: 1fr 1fr; gap: 14px;}
.answers > div {border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px;}
.answers h4 {margin: 0 0 4px; font-size: 0.86rem; color: var(--quiet);}
.answer {white-space: pre-wrap; margin: 0 0 10px;} .answer:last-child {margin-bottom: 0;}
details {margin-top: 10px;} summary {cursor: pointer; color: var(--quiet);}
pre {white-space: pre-wrap; font-size: 0.86rem; margin: 8px 0 0;}
.tp-curve {width: 100%; height: auto; display: block;}
.tp-curve polyline {fill: none; stroke-linejoin: round;}
.tp-loss {stroke: var(--loss); stroke-width: 1.2; opacity: 0.8;}
.tp-smoothed {stroke: var(--smoothed); stroke-width: 2.4;} .tp-smoothed-dot {fill: var(--smoothed);}
.tp-rate {stroke: var(--rate); stroke-width: 1.4; stroke-dasharray: 5 4;}
.tp-kept {stroke: var(--kept); stroke-width: 1.8;} .tp-kept-dot {fill: var(--kept);}
.tp-grid {stroke: var(--line); stroke-width: 1;} .tp-mark {stroke: var(--mark); stroke-width: 3; opacity: 0.55;}
.tp-phase {stroke: var(--bad); stroke-width: 1.4; stroke-dasharray: 2 3;}
.tp-phase-name {fill: var(--text); font-size: 12px; paint-order: stroke; stroke: var(--sheet); stroke-width: 4px;}
.tp-by-step {display: var(--by-step, inline);} .tp-by-epoch {display: var(--by-epoch, none);}
#by-epoch:checked ~ * {--by-step: none; --by-epoch: inline;}
.tp-recall {width: 100%; height: 26px; display: block; margin: 8px 0 12px;} .tp-recall-cell {fill: var(--mark);}
.tp-axis {fill: var(--quiet); font-size: 12px;} .tp-rate-axis {fill: var(--rate);}
.tp-hover {fill: transparent;} .tp-hover:hover {fill: var(--smoothed);}
.key {font-size: 0.9rem; color: var(--quiet); margin-top: 8px;}
.key i {display: inline-block; width: 18px; height: 3px; vertical-align: middle; margin: 0 6px 0 0;}
.key span {margin-right: 18px; white-space: nowrap;}
@media (max-width: 620px) {body {padding: 10px 8px 24px;} header, section {padding: 14px;}
  .answers {grid-template-columns: 1fr;} h1 {font-size: 1.35rem;}}
@media print {:root {--ground: #fff; --sheet: #fff; --text: #000; --quiet: #444; --line: #bbb;}
  #by-epoch, #by-epoch + label {display: none;}
  body {padding: 0; font-size: 11pt;} header, section {border-radius: 0; border-width: 0 0 1px; padding: 10px 0;}
  h2, h3, .tp-curve, .answers > div, tr {break-inside: avoid;} details:not([open]) {display: none;}}
"""
