"""Whatever the options and whatever is in a checkpoint folder: a run, or one clear line; never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import tiny, vouch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdpg import train
from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.evaluate import evaluate
from sdpg.run import checkpoint

BOUNDED = "--num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1 --algo.horizon 3 --quiet".split()
NUMBERS = st.sampled_from("-1 0 1 2 3 0.5 -0.5 1e-30 1e30 nan inf -inf 99999999999999999999 1e400 x".split())
WORDS = st.sampled_from(["", "auto", "cpu", "state", "-", "--", "../x", "\u0000", "None", "True", "1 2", "a:b"])
SMALL = st.sampled_from("-1 0 1 2 3 nan x".split())  # where a large number would only be slow

NUMERIC = (
    "minutes seed checkpoint-every keep-checkpoints max-failed memory-gb algo.gamma algo.lam algo.initial-std "
    "algo.temperature algo.target-std algo.mean-bound algo.actor-lr algo.critic-lr algo.temperature-lr "
    "algo.target-decay algo.max-grad-norm algo.reward-scale algo.output-gain algo.regression-fraction algo.warmup "
    "algo.critic-batch algo.actor-chunk algo.schedule-iterations algo.actor-lr-min"
).split()
CHOICES = (
    "preset obs device sim algo.exploration algo.denominator algo.precision algo.encoder algo.log-std-bounds".split()
)
COUNTS = "num-nominal num-auxiliary iterations threads algo.horizon algo.critic-passes algo.regression-steps".split()

OPTION = st.one_of(
    st.tuples(st.sampled_from(NUMERIC), NUMBERS),
    st.tuples(st.sampled_from(CHOICES), WORDS),
    st.tuples(st.sampled_from(COUNTS), SMALL),
    st.tuples(st.text("abc-. ", min_size=1, max_size=6), WORDS),
)
QUIETLY = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@QUIETLY
@given(st.lists(OPTION, max_size=4))
def test_any_options(options: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        argv = ["train", "cartpole", *BOUNDED, "--run", str(run)]
        for name, value in options:
            argv += [f"--{name}={value}"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(argv)
        lines = [line for line in err.getvalue().splitlines() if not line.startswith("warning: ")]
        assert code in (0, 2)
        assert len(lines) == (code == 2), err.getvalue()
        if run.exists() and any(run.iterdir()):  # then it is a whole run, that says how it ended
            status = json.loads((run / "status.json").read_text())
            assert status["state"] == ("finished" if code == 0 else "failed")
            assert (run / "config.json").is_file()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = tmp_path_factory.mktemp("sound") / "run"
    train.train(tiny(iterations=2), run)
    yield run


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the whole of it first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, item in inner for place in _leaves(item, (*path, key))]


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


@pytest.mark.slow
@QUIETLY
@given(st.data())
def test_any_checkpoint_folder(sound: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        shutil.copytree(sound, run)
        folder = checkpoint.find(run)
        name = data.draw(st.sampled_from(["tensors.safetensors", "state.json", "manifest.json", "../last", "../best"]))
        file = folder / name
        content = file.read_bytes() if file.exists() else b""
        kind = data.draw(st.sampled_from(["bytes", "cut", "gone", "json"]))
        if kind == "bytes" and content:
            at = data.draw(st.integers(0, len(content) - 1))
            content = content[:at] + data.draw(st.binary(max_size=8)) + content[at + 1 :]
        elif kind == "cut":
            content = content[: data.draw(st.integers(0, len(content)))]
        elif kind == "json" and name.endswith(".json"):
            value = json.loads(content)
            content = json.dumps(_with(value, data.draw(st.sampled_from(_leaves(value))), data.draw(JSON))).encode()
        file.write_bytes(content)
        if kind == "gone":
            file.unlink()
        if data.draw(st.booleans()) and (folder / "manifest.json").exists() and not name.startswith("manifest"):
            vouch(folder)  # hashes that fit, as one who means harm would make them
        for use in (lambda: evaluate(run, episodes=1, threads=1), lambda: train.train(tiny(iterations=3), run, True)):
            with contextlib.suppress(SdpgError):
                use()
