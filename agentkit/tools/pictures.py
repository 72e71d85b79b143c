"""Pictures composed from their prompts, which name them, so that nothing is drawn until somebody looks.

An SVG: the place on a map where the prompt has coordinates, else a landscape, with the prompt's first part as
title, the others as facts, in the colour it names. Leaves out whether a prompt is right
(verifiers.pictures).
"""

import hashlib
import random
import re
from xml.sax.saxutils import escape

from agentkit.records import Image
from agentkit.tools.gazetteer import CELL, land

MAX_PROMPT = 1_000  # characters
COLOURS = {  # by name: a dark and a light shade
    "blue": ("#1d3f72", "#a9c8ee"),
    "red": ("#7d1f24", "#f0b4ad"),
    "green": ("#1f5b3a", "#b5ddbf"),
    "gold": ("#6b4b0c", "#f1d68a"),
    "black": ("#1c1c22", "#c3c4cc"),
    "white": ("#55606b", "#f4f6f8"),
    "violet": ("#47296f", "#d2bdec"),
    "orange": ("#7a3a0b", "#f6c493"),
}
WIDE, HIGH, MAP = 480, 300, 200  # of a composed picture, and how high its upper part is
_PLACE = re.compile(r"(?<![\w.])([-−]?\d{1,2}\.\d{1,6})(?:[,;] *| +)([-−]?\d{1,3}\.\d{1,6})(?![\w.])")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def name_of(prompt: str) -> str:
    """The name of a prompt's picture, such as "picture 482193". Raises ValueError for what is no prompt."""
    if not prompt.strip():
        raise ValueError("the prompt is empty; say what to draw")
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"the prompt has {len(prompt)} characters; the limit is {MAX_PROMPT}")
    return f"picture {100_000 + int(_digest(prompt), 16) % 900_000}"


def paint(prompt: str) -> Image:
    """The composed picture of a prompt. Raises ValueError as ``name_of`` does."""
    return Image(f"{name_of(prompt)}: {prompt}", compose(prompt).encode(), "svg+xml")


def _digest(prompt: str) -> str:
    return hashlib.sha256(" ".join(prompt.split()).encode("utf-8", "backslashreplace")).hexdigest()


def compose(prompt: str) -> str:
    """An SVG for a prompt: the same text, byte by byte, on every machine."""
    dark, light = _shades(prompt)
    place = _PLACE.search(prompt)
    latitude, longitude = (float(part.replace("−", "-")) for part in place.groups()) if place else (99.0, 0.0)
    on_map = place is not None and abs(latitude) <= 90 and abs(longitude) <= 180
    title, *facts = _parts(prompt)
    upper = _map(latitude, longitude, dark, light) if on_map else _landscape(prompt, dark, light)
    size = max(11, min(24, int(1.7 * (WIDE - 32) / max(len(title), 1))))
    lines = [_text(16, MAP + 34, size, title, 'font-weight="700"')]
    lines += [_text(16, MAP + 56 + 18 * i, 14, fact) for i, fact in enumerate(facts[:3])]
    size = f'width="{WIDE}" height="{HIGH}"'
    ground, words = f'<rect {size} fill="{dark}"/>', f'<g fill="{light}">{"".join(lines)}</g>'
    frame = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" {size}'
    return f"<svg {frame}>{ground}{upper}{words}</svg>"


def _shades(prompt: str) -> tuple[str, str]:
    words = re.findall(r"[a-z]+", prompt.casefold())
    named = next((word for word in words if word in COLOURS), None)
    return COLOURS[named or sorted(COLOURS)[int(_digest(prompt)[:4], 16) % len(COLOURS)]]


def _parts(prompt: str) -> list[str]:
    """Title and facts: what commas divide, each on one line."""
    parts = [" ".join(part.split()) for part in re.split(r"[,;\n]", prompt)]
    parts = [part if len(part) <= 60 else f"{part[:59]}…" for part in parts if part]
    return parts or [" ".join(prompt.split())[:60]]


def _text(x: int, y: int, size: int, text: str, more: str = "") -> str:
    font = 'font-family="Georgia, serif"'
    return f'<text x="{x}" y="{y}" font-size="{size}" {font} {more}>{escape(_NO_XML.sub("�", text))}</text>'


def _map(latitude: float, longitude: float, dark: str, light: str) -> str:
    """The world as cells with cities, 70 degrees north to 60 south, and a mark at the place."""
    scale = WIDE / 360
    top = 75 - 15 * (latitude < -50)  # of the part of the world that is shown
    cells = "".join(f"M{CELL * column} {CELL * row + CELL / 2:g}h{CELL * run}" for column, row, run in land())
    x, y = (longitude + 180) * scale, max(6.0, (top - latitude) * scale)
    return (
        f'<svg width="{WIDE}" height="{MAP}" viewBox="0 {90 - top} 360 {MAP / scale:g}">'
        f'<rect width="360" height="180" fill="{light}"/>'
        f'<path d="{cells}" stroke="{dark}" stroke-opacity=".55" stroke-width="{CELL - 0.4:g}"/></svg>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="13" fill="none" stroke="#e4322b" stroke-width="3"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#e4322b"/>'
    )


def _landscape(prompt: str, dark: str, light: str) -> str:
    """Hills under a sun, which follow from the prompt."""
    rng = random.Random(_digest(prompt))
    x, y, radius = rng.randint(60, WIDE - 60), rng.randint(40, 100), rng.randint(18, 34)
    sun = f'<circle cx="{x}" cy="{y}" r="{radius}" fill="#fff" fill-opacity=".8"/>'
    hills = []
    for number, opacity in enumerate((0.25, 0.45, 0.75)):
        base = 90 + 35 * number
        heights = [base + rng.randint(-30, 25) for _ in range(7)]
        curve = "".join(f"S{80 * i - 40} {y} {80 * i} {y}" for i, y in enumerate(heights[1:], start=1))
        hills.append(f'<path d="M0 {heights[0]}{curve}V{MAP}H0Z" fill="{dark}" fill-opacity="{opacity}"/>')
    return f'<rect width="{WIDE}" height="{MAP}" fill="{light}"/>{sun}{"".join(hills)}'
