"""A private Slurm cluster of two nodes on this machine, with real slurmctld and slurmd, free ports and no munge."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.external_programs import started
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, until

PATH = f"/usr/sbin{os.pathsep}{os.environ['PATH']}"
NODES = ("127.0.0.1", "127.0.0.2")
"""Names of the nodes. They are addresses, because jobs connect to their first node by name."""
_PROGRAMS = {name: shutil.which(name, path=PATH) for name in ("slurmctld", "slurmd", "sbatch", "srun")}

needs_slurm = pytest.mark.skipif(
    None in _PROGRAMS.values(), reason="Slurm is not here (slurmctld, slurmd, sbatch and srun)"
)

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
KillWait=5
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={nodes[0]} Port={ports[0]} CPUs=8 State=UNKNOWN
NodeName={nodes[1]} Port={ports[1]} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """A running cluster. Commands find it by ``SLURM_CONF``."""

    configuration: Path

    def command(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return the standard output of a command, which must succeed within the tests' patience."""
        merged = {**os.environ, **(env or {}), "SLURM_CONF": str(self.configuration)}
        merged["PATH"] = f"{merged['PATH']}{os.pathsep}/usr/sbin"
        done = subprocess.run(command, env=merged, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def submit(self, *command: str, env: Mapping[str, str]) -> str:
        """Submit a batch job, and return its id."""
        return self.command("sbatch", "--parsable", *command, env=env).strip()

    def state(self, job: str) -> str:
        """Return a job's state, such as RUNNING or COMPLETED."""
        fields = self.command("scontrol", "show", "job", job).split()
        return next(field.removeprefix("JobState=") for field in fields if field.startswith("JobState="))

    def ended(self, job: str) -> str:
        """Wait for a job's end, and return its final state."""
        return until(lambda: state if (state := self.state(job)) not in {"PENDING", "RUNNING", "COMPLETING"} else None)


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Run a cluster during the block."""
    (folder / "state").mkdir(parents=True)
    for node in NODES:
        (folder / node).mkdir()
    configuration = folder / "slurm.conf"
    text = CONFIGURATION.format(
        host=socket.gethostname(),
        port=free_port(),
        user=getpass.getuser(),
        folder=folder,
        nodes=NODES,
        ports=(free_port(), free_port()),
    )
    configuration.write_text(text)
    env = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(folder / "slurmctld.log", str(_PROGRAMS["slurmctld"]), "-D", "-c", env=env))
        for node in NODES:
            stack.enter_context(started(folder / f"{node}.log", str(_PROGRAMS["slurmd"]), "-D", "-N", node, env=env))
        cluster = Slurm(configuration)
        command = [shutil.which("sinfo", path=PATH) or "sinfo", "--noheader", "--states=idle", "--format=%D"]

        def ready() -> bool:
            done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
            return done.stdout.strip() == str(len(NODES))

        until(ready)
        yield cluster
