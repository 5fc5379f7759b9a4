"""Runs simulations: `python -m turnwise.testing.simulation --seed 7` repeats one and prints what happened."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

from turnwise.testing.simulation.world import World


def main() -> int:
    """Run the seeds that were asked for; return 1 if one of them found a problem."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed to run, or the first of several")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, counting up")
    parser.add_argument("--rounds", type=int, default=25, help="how many actions each world has before its faults end")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, failed = time.monotonic(), []
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        world = World(seed, rounds=chosen.rounds)
        problems = asyncio.run(world.run())
        if problems or chosen.runs == 1:
            print("\n".join([f"seed {seed}:", *(f"  {line}" for line in world.trace)]))  # noqa: T201 - a command
        if problems:
            failed.append(seed)
            print("\n".join(f"  PROBLEM {problem}" for problem in problems))  # noqa: T201 - a command
    seconds = time.monotonic() - began
    print(f"{chosen.runs} world(s) in {seconds:.1f} s, {len(failed)} with problems{failed or ''}")  # noqa: T201 - a command
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
