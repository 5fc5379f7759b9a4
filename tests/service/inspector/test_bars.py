"""How bars are laid out: the page's own module, run in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.node import NODE, needs_node

BARS = Path(__file__).parents[3] / "service" / "inspector" / "bars.js"
ANY_BARS = """
const { packed } = await import(process.argv[1]);
let seed = 1;
const drawn = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
const wrong = [];
for (let world = 0; world < 20000; world += 1) {
  const scale = drawn() * 3, least = drawn() * 20;
  const bars = Array.from({ length: 1 + Math.floor(drawn() * 6) }, () => {
    const from = drawn() * 1000;
    return { from, to: from + (drawn() < 0.5 ? 0 : drawn() * 300) };
  });
  try {
    const items = packed(bars, (time) => time * scale, { rows: 1 + (world % 3), least });
    if (items.flatMap((item) => item.bars).length !== bars.length) wrong.push("lost");
    if (items.some((item) => item.right < item.left + least)) wrong.push("narrow");
  } catch (error) {
    wrong.push(error.message);
  }
}
console.log(JSON.stringify(wrong));
"""
"""Lays out bars at odd places: whatever the rounding, each is drawn once, and wide enough to be hit."""


@needs_node
def test_bars_are_laid_out_wherever_they_stand() -> None:
    asked = [NODE, "--input-type=module", "-e", ANY_BARS, str(BARS)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
