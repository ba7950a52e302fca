"""Groups of successive torchft quorums, over real gloo groups. A stand-in forms them like torchft."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import single_rank

pytestmark = pytest.mark.usefixtures("warm")

PROGRAM = """
import types
from otel_fr.fault_tolerance.gloo_connections import devices
from otel_fr.fault_tolerance.peers import PeerFailure, peers
session_module.start_monitor = no_monitor
hook.install()
torchft = types.ModuleType("torchft.process_group")
store = dist.HashStore()

class ProcessGroup:
    pass

class ProcessGroupWrapper:
    _pg = None
    def configure(
        self, store_addr, replica_id, rank, world_size, quorum_id=None, group_rank=None, group_world_size=None
    ):
        self._pg = None  # torchft also destroys the group before, whose descriptors the next one gets
        own = dist.PrefixStore(str(quorum_id), store)
        group = dist.ProcessGroup(own, rank, world_size)
        backend = dist.ProcessGroupGloo(own, rank, world_size)
        backend._set_sequence_number_for_group()
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        self._pg = group

torchft.ProcessGroup, torchft.ProcessGroupWrapper = ProcessGroup, ProcessGroupWrapper
hook._patch_torchft(torchft)
wrapper = ProcessGroupWrapper()
found = []
for quorum in (1, 2, 3, 4):
    if quorum == 2:
        failure = PeerFailure((1,), "rank 1 was killed", (), "")
        peers.deliver(failure)
        peers.note_ended({"torchft_quorum_1_rank_0": failure})
    wrapper.configure("x", "replica", 0, 1, quorum_id=quorum, group_rank=0, group_world_size=1)
    own = hook._state.connections._of_group
    found.append((sorted(own), set().union(*own.values()) == set(devices()), peers.ended_by is None))
    assert hook._state.session._find_group(f"torchft_quorum_{quorum}_rank_0") is wrapper._pg
hook.uninstall()
print(found)
print(hook._state.connections)
"""


def test_what_was_known_of_an_earlier_quorums_group_ends_with_it(tmp_path: Path) -> None:
    """Linux reuses descriptors, so an earlier group's descriptors would hide a later group's."""
    lines = single_rank.succeed(tmp_path, PROGRAM, OTEL_FR_ON_PEER_FAILURE="abort").splitlines()
    found = ast.literal_eval(lines[0])
    assert found == [([f"torchft_quorum_{number}_rank_0"], True, True) for number in (1, 2, 3, 4)]
    assert lines[1] == "None"
