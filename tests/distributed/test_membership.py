"""ncelm.distributed.membership: restarts by torchrun, and run directories that have lost their checkpoint."""

import pytest

from ncelm.distributed import membership
from ncelm.distributed.membership import Member
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.training.loop import train

SMALL = {"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100, "threads": 1}


@pytest.fixture
def torchrun(monkeypatch, tmp_path):
    """Simulate a single worker of a torchrun agent, and return a function that changes the agent."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    set_agent = lambda name: monkeypatch.setattr(membership, "agent", lambda: name)  # noqa: E731
    set_agent("first/1/1.00")
    return set_agent


def stop_after(epoch):
    """Return a progress function that fails in the epoch after this one."""

    def fail(progress):
        if progress.epoch > epoch:
            raise RuntimeError("killed")

    return fail


def killed_run(store, out):
    """Train for one epoch of three."""
    with pytest.raises(RuntimeError, match="killed"):
        train(store, out, epochs=3, progress=stop_after(1), **SMALL)
    assert (out / run.CHECKPOINT).exists()


def test_an_agent_is_identified_by_its_process(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert membership.agent() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert membership.agent() == membership.agent() is not None


@pytest.mark.parametrize(
    ("words", "environment", "has_problem"),
    [
        (["--nnodes", "1:4"], {}, True),
        (["--nnodes=1:4"], {}, True),
        ([], {"PET_NNODES": "2:4"}, True),
        (["--nnodes", "1:4"], {membership.OWN_STORE: "1"}, False),
        (["--nnodes", "4:4"], {}, False),
        (["--nnodes=4"], {"PET_NNODES": "1:4"}, False),
        ([], {}, False),
    ],
)
def test_machines_can_join_later_with_the_setting_of_the_documentation(monkeypatch, words, environment, has_problem):
    class Agent:
        def __init__(self, pid):
            pass

        def cmdline(self):
            return ["python", "torchrun", *words, "-m", "ncelm", "train"]

    monkeypatch.setattr("psutil.Process", Agent)
    for name in ("TORCHELASTIC_RUN_ID", "PET_NNODES", membership.OWN_STORE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert membership.membership_problem() is None  # not started by torchrun
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    problem = membership.membership_problem()
    assert (problem is not None) == has_problem
    assert problem is None or f"without {membership.OWN_STORE}=1" in problem


def test_workers_of_the_same_agent_continue_without_resume(torchrun, cycle_store, tmp_path):
    killed_run(cycle_store, tmp_path / "run")
    result = train(cycle_store, tmp_path / "run", epochs=3, **SMALL)
    assert result["epoch"] == 3
    assert not (tmp_path / "run" / membership.FILE).exists()  # finished
    assert not list(tmp_path.glob("ncelm-*.json"))


def test_workers_of_another_agent_need_resume(torchrun, cycle_store, tmp_path):
    killed_run(cycle_store, tmp_path / "run")
    torchrun("second/2/2.00")
    with pytest.raises(NcelmError, match="exists already: continue with `resume`"):
        train(cycle_store, tmp_path / "run", epochs=3, **SMALL)
    assert train(cycle_store, tmp_path / "run", epochs=3, resume=True, **SMALL)["epoch"] == 3


@pytest.mark.parametrize("lost", ["directory", "checkpoint", "later checkpoint"])
def test_a_directory_that_has_lost_its_checkpoint_is_rejected(torchrun, cycle_store, tmp_path, lost):
    out = tmp_path / "run"
    killed_run(cycle_store, out)
    if lost == "directory":
        out.rename(tmp_path / "elsewhere")
    elif lost == "checkpoint":
        (out / run.CHECKPOINT).unlink()
    else:
        membership.remember(out, 2.5)
    with pytest.raises(
        NcelmError, match=r"has lost its checkpoint: it is at epoch [01]\.00, and worker 0 \(.*\) saw one"
    ):
        train(cycle_store, out, epochs=3, **SMALL)
    assert out.exists() == (lost != "directory")


def test_members_are_sent_as_text():
    member = Member(3, "host", None, 1.5)
    assert Member.from_text(member.to_text()) == member


def test_a_damaged_list_of_agents_is_ignored(tmp_path):
    (tmp_path / membership.FILE).write_text("{")
    assert not membership.is_restart(tmp_path, [Member(0, "host", "agent", 0.0)])
    membership.record_agents(tmp_path, [Member(0, "host", "agent", 0.0)])
    assert membership.is_restart(tmp_path, [Member(0, "host", "agent", 0.0)])
    assert not membership.is_restart(tmp_path, [Member(0, "host", None, 0.0)])
