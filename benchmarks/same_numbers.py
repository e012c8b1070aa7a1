"""Do two versions of sdpg compute the same numbers? Fixed-seed runs of both, compared bit for bit.

    git worktree add ../before OLD_COMMIT
    python benchmarks/same_numbers.py ../before .

Each version trains the hopper from state and the cartpole from pixels for 20 iterations, once in one go and once
stopped and resumed in the middle. Then the tensors of the last checkpoints are compared: before with after, and resumed
with not stopped. A refactoring must not change one bit of them. Both versions have to run on the same machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

RUNS = {"hopper from state": ["hopper"], "cartpole from pixels": ["cartpole", "--obs", "pixels"]}
ITERATIONS = 20
RENAMED = {"env/sim.rows": "env/sim.state", "env/eyes.pixels": "env/frames.pixels"}  # by the later version


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="source tree of the earlier version")
    parser.add_argument("after", type=Path, help="source tree of the later version")
    trees = vars(parser.parse_args())
    differences = 0
    with tempfile.TemporaryDirectory() as scratch:
        for what, words in RUNS.items():
            results = {}
            for version, tree in trees.items():
                for resumed in (False, True):
                    run = Path(scratch) / f"{words[0]}-{version}-{resumed}"
                    train(tree, words, run, resumed)
                    results[version, resumed] = tensors(run)
            reference = results["before", False]
            for (version, resumed), found in results.items():
                differences += compare(f"{what}, {version}{', resumed' if resumed else ''}", reference, found)
    print("the same numbers" if not differences else f"{differences} tensors differ")
    return 1 if differences else 0


def train(tree: Path, words: list[str], run: Path, resumed: bool) -> None:
    schedule = ["--algo.schedule-iterations", str(ITERATIONS)]  # alike for a run that stops half-way
    first = ["--iterations", str(ITERATIONS // 2 if resumed else ITERATIONS)]
    sdpg(tree, "train", *words, "--seed", "3", "--threads", "1", "--run", str(run), *first, *schedule)
    if resumed:
        sdpg(tree, "train", "--resume", str(run), "--iterations", str(ITERATIONS))


def sdpg(tree: Path, *words: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src")}
    subprocess.run([sys.executable, "-m", "sdpg", *words, "--quiet"], env=environment, check=True)


def tensors(run: Path) -> dict[str, bytes]:
    """Name -> bytes of every tensor of the last checkpoint."""
    file = run / "checkpoints" / f"{ITERATIONS:08}" / "tensors.safetensors"
    with safe_open(file, "pt") as opened:
        names = list(opened.keys())
        return {RENAMED.get(name, name): opened.get_tensor(name).numpy().tobytes() for name in names}


def compare(what: str, reference: dict[str, bytes], found: dict[str, bytes]) -> int:
    """The number of differing tensors; those that only one version saves are named."""
    common = reference.keys() & found.keys()
    differing = sorted(name for name in common if reference[name] != found[name])
    print(f"{what}: {len(common) - len(differing)} tensors equal, {len(differing)} differ")
    for name in differing:
        print(f"  differs: {name}")
    for name in sorted(reference.keys() ^ found.keys()):
        print(f"  only {'before' if name in reference else 'after'}: {name}")
    return len(differing) + len(reference.keys() ^ found.keys())


if __name__ == "__main__":
    sys.exit(main())
