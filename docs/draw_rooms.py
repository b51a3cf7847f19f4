"""Draw docs/pictures/rooms.svg: the packages, their sub-packages, and who imports whom, read from the imports.

    python3 docs/draw_rooms.py [--check]

`--check` writes nothing and exits 1 where the picture on disk is not that of the code.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
PACKAGES = ("commands", "interface", "engine", "hosts", "downloads", "data", "records", "settings", "core")
MODULES = ("script", "dementor", "chunking", "schedulers", "train_utils")
WIDTH, GAP, ROW, HEAD = 1080, 28, 19, 30
STYLE = """
svg { font: 13px system-ui, sans-serif; color: #1f2430; background: #fff; }
rect { fill: #f4f6fa; stroke: #8a94a6; } .title { font-weight: 600; } .small { fill: #5a6475; }
path { fill: none; stroke: #6b7a99; stroke-width: 1.2; opacity: .65; }
text { fill: currentColor; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e9f0; background: #161a22; } rect { fill: #202632; stroke: #5a6475; } .small { fill: #9aa4b5; }
}
"""

Graph = Mapping[str, set[str]]


def files() -> Iterator[Path]:
    """The source files of every room, by their path from the root."""
    for name in MODULES:
        yield Path(f"{name}.py")
    for name in PACKAGES:
        yield from sorted(path.relative_to(ROOT) for path in (ROOT / name).rglob("*.py"))


def room(parts: tuple[str, ...], depth: int) -> str:
    """The package of a file at depth 1 ('engine'), its sub-package at depth 2 ('engine.plan', or 'engine')."""
    folders = parts[:-1] if (ROOT / Path(*parts)).suffix == ".py" else parts
    return ".".join(folders[:depth]) or parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports of ours, as paths from the root."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*file.parts[: len(file.parts) - node.level], *filter(None, (node.module or "").split(".")))
            for name in [()] if base else [(alias.name,) for alias in node.names]:
                parts = (*base, *name)
                is_module = (ROOT / Path(*parts)).with_suffix(".py").is_file()
                yield (*parts[:-1], f"{parts[-1]}.py") if is_module else parts


def graph(depth: int) -> dict[str, set[str]]:
    """Which room imports which."""
    needs: dict[str, set[str]] = defaultdict(set)
    for file in files():
        own = room(file.parts, depth)
        needs[own] |= {room(parts, depth) for parts in imported(file)} - {own}
    return needs


def levels(needs: Graph) -> list[list[str]]:
    """The rooms in rows: each room stands above everything that it imports."""
    height: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in height:
            height[name] = 1 + max(map(of, needs.get(name, ())), default=-1)
        return height[name]

    for name in needs:
        of(name)
    order = [*MODULES, *PACKAGES]
    rows = [sorted((n for n in needs if height[n] == row), key=order.index) for row in set(height.values())]
    return rows[::-1]


def direct(needs: Graph) -> Iterator[tuple[str, str]]:
    """The arrows to draw: those that no longer way says already."""
    reach: dict[str, set[str]] = {}

    def all_below(name: str) -> set[str]:
        if name not in reach:
            reach[name] = set(needs.get(name, ())).union(*(all_below(other) for other in needs.get(name, ())))
        return reach[name]

    for name, others in needs.items():
        for other in sorted(others):
            if not any(other in all_below(third) for third in others - {other}):
                yield name, other


def inside(name: str, needs: Graph) -> list[str]:
    """The sub-packages of a room with their number of modules, those that import others first."""
    subs = [sub for sub in needs if sub.startswith(f"{name}.")]
    within = {sub: needs[sub] & set(subs) for sub in subs}
    ordered = [sub for row in levels_of(within) for sub in row]
    lines = [f"{sub.split('.')[1]}/  {count(ROOT / sub.replace('.', '/'))}" for sub in ordered]
    own = count(ROOT / name) if (ROOT / name).is_dir() else 0
    return lines + [f"and {own} of its own" if lines else f"{own} modules"] * bool(own)


def levels_of(needs: Graph) -> list[list[str]]:
    """Rows of sub-packages, by what they import of each other."""
    left, rows = {name: set(others) for name, others in needs.items()}, []
    while left:
        ready = sorted(name for name, others in left.items() if not others & left.keys())
        rows.append(ready)
        left = {name: others for name, others in left.items() if name not in ready}
    return rows[::-1]


def count(folder: Path) -> int:
    return sum(file.name != "__init__.py" for file in folder.glob("*.py"))


def drawing() -> str:
    """The picture as SVG."""
    needs, detailed = graph(1), graph(2)
    boxes, parts, top = {}, [], GAP
    for row in levels(needs):
        texts = {name: inside(name, detailed) for name in row}
        tall = HEAD + ROW * max(len(lines) for lines in texts.values()) + 8
        wide = min(230.0, (WIDTH - GAP) / len(row) - GAP)
        left = (WIDTH - len(row) * (wide + GAP) + GAP) / 2
        for name in row:
            boxes[name] = (left, top, wide, HEAD + ROW * len(texts[name]) + 8)
            title = name if (ROOT / name).is_dir() else f"{name}.py"
            words = [f'<text class="title" x="{left + 12:.0f}" y="{top + 20}">{title}</text>']
            for number, line in enumerate(texts[name]):
                y = top + HEAD + ROW * number + 12
                words.append(f'<text class="small" x="{left + 12:.0f}" y="{y}">{line}</text>')
            x, y, w, h = boxes[name]
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{w:.0f}" height="{h}" rx="6"/>' + "".join(words))
            left += wide + GAP
        top += tall + 2 * GAP
    arrows = [arrow(boxes[one], boxes[other]) for one, other in direct(needs)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    title = "<title>The packages of Training PRO; an arrow points to what is imported</title>"
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto">'
        '<path d="M0 0L8 4L0 8" style="opacity:1"/></marker></defs>'
    )
    return "\n".join([head, title, f"<style>{STYLE}</style>", marker, *arrows, *parts, "</svg>", ""])


def arrow(one: tuple[float, int, float, int], other: tuple[float, int, float, int]) -> str:
    x1, y1 = one[0] + one[2] / 2, one[1] + one[3]
    x2, y2 = other[0] + other[2] / 2, other[1]
    middle = (y1 + y2) / 2
    curve = f"M{x1:.0f} {y1}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2}"
    return f'<path d="{curve}" marker-end="url(#tip)"/>'


def main() -> int:
    made = drawing()
    if "--check" in sys.argv:
        return int(not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != made)
    PICTURE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
