from __future__ import annotations

import errno
import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import vouch

from sdpg.errors import SdpgError
from sdpg.run import checkpoint


def _state(value: float = 1.0) -> dict[str, Any]:
    return {
        "algo": {"iteration": 3, "net": {"0.weight": torch.full((2, 3), value), "empty": torch.zeros(0, 2)}},
        "env": {"clock": torch.arange(4), "done": torch.tensor([True, False])},
        "run": {"seconds": 1.5, "none": None},
    }


def _root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_a_saved_tree_comes_back_exactly(tmp_path: Path) -> None:
    tensor = torch.randn(5, 4, dtype=torch.float64)
    state = _state() | {"more": {"view": tensor.t(), "same": tensor}}  # neither contiguous nor with memory of its own
    checkpoint.save(_root(tmp_path), 3, state, {"task": "x", "widths": (1, 2)})
    loaded = checkpoint.load(checkpoint.find(tmp_path))
    assert loaded.iteration == 3
    assert loaded.cfg == {"task": "x", "widths": [1, 2]}
    before, after = checkpoint.flatten(state), checkpoint.flatten(loaded.state)
    assert before.keys() == after.keys()
    for name, value in before.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == after[name].dtype
            assert torch.equal(value, after[name])
        else:
            assert value == after[name]


def test_flatten_refuses_a_slash_in_a_key() -> None:
    with pytest.raises(ValueError, match="slash"):
        checkpoint.flatten({"a/b": 1})


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="can't be saved"):
        checkpoint.save(_root(tmp_path), 1, {"x": object()}, {})


def test_only_the_newest_are_kept_and_last_points_to_the_newest(tmp_path: Path) -> None:
    for iteration in (5, 10, 15, 20):
        checkpoint.save(_root(tmp_path), iteration, _state(), {}, keep=2)
    assert sorted(p.name for p in _root(tmp_path).iterdir()) == ["00000015", "00000020", "last"]
    assert checkpoint.find(tmp_path).name == "00000020"
    assert checkpoint.find(tmp_path, 15).name == "00000015"
    assert checkpoint.find(tmp_path, "15").name == "00000015"
    assert checkpoint.find(_root(tmp_path) / "00000015").name == "00000015"  # a checkpoint folder stands for itself


def test_best_points_to_the_highest_score(tmp_path: Path) -> None:
    for iteration, score in ((5, None), (10, 7.0), (15, 2.0), (20, 7.0), (25, 1.0), (30, None)):
        checkpoint.save(_root(tmp_path), iteration, _state(), {}, keep=1, score=score)
    assert sorted(p.name for p in _root(tmp_path).iterdir()) == ["00000020", "00000030", "best", "last"]  # the later 7
    assert checkpoint.load(checkpoint.find(tmp_path, "best")).score == 7.0
    (_root(tmp_path) / "best").write_text("../../elsewhere")
    assert checkpoint.best_score(_root(tmp_path)) is None
    with pytest.raises(SdpgError, match="not a checkpoint"):
        checkpoint.find(tmp_path, "best")


def test_without_a_score_there_is_no_best(tmp_path: Path) -> None:
    checkpoint.save(_root(tmp_path), 5, _state(), {})
    with pytest.raises(SdpgError, match="no best checkpoint yet"):
        checkpoint.find(tmp_path, "best")


def test_without_a_pointer_the_newest_is_taken(tmp_path: Path) -> None:
    checkpoint.save(_root(tmp_path), 5, _state(), {})
    (_root(tmp_path) / "last").unlink()
    assert checkpoint.find(tmp_path).name == "00000005"


def test_an_iteration_can_be_saved_again(tmp_path: Path) -> None:
    checkpoint.save(_root(tmp_path), 5, _state(1.0), {})
    checkpoint.save(_root(tmp_path), 5, _state(2.0), {})
    loaded = checkpoint.load(checkpoint.find(tmp_path))
    assert loaded.state["algo"]["net"]["0.weight"][0, 0] == 2.0
    assert not list(_root(tmp_path).glob(".tmp-*"))


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_a_crash_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {name: getattr(os, name) for name in ("fsync", "replace")}

    def dying(name: str, countdown: list[int]) -> Any:
        def call(*args: Any) -> Any:
            countdown[0] -= 1
            if countdown[0] < 0:
                raise Killed
            return calls[name](*args)

        return call

    survived = 0
    for moment in range(20):
        run = tmp_path / str(moment)
        checkpoint.save(_root(run), 1, _state(1.0), {})
        with monkeypatch.context() as patch:
            countdown = [moment]
            for name in calls:
                patch.setattr(os, name, dying(name, countdown))
            try:
                checkpoint.save(_root(run), 2, _state(2.0), {}, keep=1)
                survived += 1
            except Killed:
                pass
        loaded = checkpoint.load(checkpoint.find(run))
        assert loaded.state["algo"]["net"]["0.weight"][0, 0] == loaded.iteration
        checkpoint.clean(_root(run))
        assert not list(_root(run).glob(".tmp-*"))
        checkpoint.save(_root(run), 2, _state(2.0), {})  # and the next save works
        assert checkpoint.load(checkpoint.find(run)).iteration == 2
    assert 0 < survived < 20  # the loop went past the last moment


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(_root(tmp_path), 1, _state(), {})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(_root(tmp_path), 2, _state(), {})
        with pytest.raises(OSError, match="No space"):
            checkpoint.write_atomic(_root(tmp_path) / "last", b"x")
    assert sorted(p.name for p in _root(tmp_path).iterdir()) == ["00000001", "last"]
    assert checkpoint.load(checkpoint.find(tmp_path)).iteration == 1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_system_that_cannot_sync_folders_saves_all_the_same(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", files_only)
    checkpoint.save(_root(tmp_path), 1, _state(), {})
    assert checkpoint.load(checkpoint.find(tmp_path)).iteration == 1


def _refused(folder: Path) -> str:
    with pytest.raises(SdpgError) as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damage_is_refused_in_one_line(tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        return checkpoint.save(_root(tmp_path / name), 1, _state(), {})

    for name in (checkpoint.TENSORS, checkpoint.STATE, checkpoint.MANIFEST):
        folder = fresh(f"missing-{name}")
        (folder / name).unlink()
        assert "is missing" in _refused(folder)

    folder = fresh("truncated")
    data = (folder / checkpoint.TENSORS).read_bytes()
    (folder / checkpoint.TENSORS).write_bytes(data[:-7])
    assert f"{len(data) - 7} bytes in place of {len(data)}" in _refused(folder)

    folder = fresh("flipped")
    data = bytearray((folder / checkpoint.TENSORS).read_bytes())
    data[-1] ^= 1
    (folder / checkpoint.TENSORS).write_bytes(data)
    assert "SHA-256" in _refused(folder)

    folder = fresh("not json")
    (folder / checkpoint.MANIFEST).write_bytes(b"\x80\x04garbage")
    assert "is not JSON" in _refused(folder)
    (folder / checkpoint.MANIFEST).write_text("[]")
    assert "not a JSON object" in _refused(folder)


def test_the_refusal_names_older_checkpoints(tmp_path: Path) -> None:
    checkpoint.save(_root(tmp_path), 1, _state(), {})
    folder = checkpoint.save(_root(tmp_path), 2, _state(), {})
    (folder / checkpoint.TENSORS).write_bytes(b"")
    assert "00000001" in _refused(folder)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    folder = checkpoint.save(_root(tmp_path), 1, _state(), {})
    header = json.loads((folder / checkpoint.STATE).read_text())

    (folder / checkpoint.STATE).write_text(json.dumps(header | {"format": "other"}))
    vouch(folder)
    assert "not of an sdpg checkpoint" in _refused(folder)

    (folder / checkpoint.STATE).write_text(json.dumps(header | {"version": 99}))
    vouch(folder)
    assert "format version 99" in _refused(folder)

    (folder / checkpoint.STATE).write_text(json.dumps(header | {"tensors": []}))
    vouch(folder)
    assert "tensors" in _refused(folder)

    (folder / checkpoint.STATE).write_text(json.dumps({"format": checkpoint.FORMAT, "version": checkpoint.VERSION}))
    vouch(folder)
    assert "KeyError" in _refused(folder)


class Payload:
    ran = False

    def __reduce__(self) -> Any:
        return (setattr, (Payload, "ran", True))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    folder = checkpoint.save(_root(tmp_path), 1, _state(), {})
    (folder / checkpoint.TENSORS).write_bytes(pickle.dumps(Payload()))
    vouch(folder)
    assert "damaged or foreign" in _refused(folder)
    assert not Payload.ran


def test_paths_do_not_escape(tmp_path: Path) -> None:
    folder = checkpoint.save(_root(tmp_path), 1, _state(), {})
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    manifest["files"]["../../secret"] = {"size": 0, "sha256": ""}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    assert "does not list exactly" in _refused(folder)
    (_root(tmp_path) / "last").write_text("../../elsewhere")
    with pytest.raises(SdpgError, match="not a checkpoint"):
        checkpoint.find(tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match="no run folder"):
        checkpoint.find(tmp_path / "nowhere")
    with pytest.raises(SdpgError, match="holds no checkpoint"):
        checkpoint.find(tmp_path)
    checkpoint.save(_root(tmp_path), 1, _state(), {})
    with pytest.raises(SdpgError, match="has no checkpoint 00000007; known: 00000001"):
        checkpoint.find(tmp_path, 7)
    with pytest.raises(SdpgError, match="'first' is not last, best or an iteration"):
        checkpoint.find(tmp_path, "first")
