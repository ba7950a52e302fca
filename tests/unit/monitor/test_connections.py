"""The kernel's tables of TCP sockets. The rows are real: each peer but one had been cut off for two seconds."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from otel_fr.monitor.process.connections import (
    MAX_ADDRESSES,
    Connections,
    connections_of,
    find_socket,
    host_of,
    parse_address,
)
from otel_fr.monitor.process.state import Process

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 01014D0A:B97C 02014D0A:1389 02 00000001:00000000 01:00000003 00000001     0        0 43615 2 00000000af3be7b0 100 0 0 1 -1
   1: 01014D0A:9728 02014D0A:1388 01 00000064:00000000 01:00000081 00000003     0        0 43606 2 00000000305c3cc8 163 0 0 1 -1
   2: 01014D0A:9732 02014D0A:1388 01 00000000:00000000 00:00000000 00000000     0        0 43607 1 000000001597efbf 20 0 0 10 -1
   3: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1533 1 0000000041d433ec 100 0 0 10 0
"""  # noqa: E501  rows as the kernel writes them
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 770000FD000000000000000001000000:CD5A 770000FD000000000000000002000000:1388 01 00000064:00000000 01:00000081 00000003     0        0 43603 2 00000000889426a1 163 0 0 1 -1
   1: 0000000000000000FFFF000001014D0A:971A 0000000000000000FFFF000002014D0A:1388 01 00000064:00000000 01:00000081 00000003     0        0 43605 2 00000000461a64a3 163 0 0 1 -1
"""  # noqa: E501  rows as the kernel writes them
LOOPBACK = (
    "   4: 0100007F:D2F2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 813 1 0 20 0 0 10 -1\n"
)


def test_peers_that_acknowledge_nothing_are_named_once_for_each_address() -> None:
    found = connections_of([TCP, TCP6], {"43603", "43605", "43606", "43607", "43615", "1533"})
    assert found == Connections(("10.77.1.1", "fd00:77::1"), ("10.77.1.2:5000", "[fd00:77::2]:5000"))
    assert [host_of(peer) for peer in found.unreached] == ["10.77.1.2", "fd00:77::2"]


def test_an_ipv4_address_in_the_table_of_ipv6_is_written_as_one() -> None:
    assert connections_of([TCP6], {"43605"}) == Connections(("10.77.1.1",), ("10.77.1.2:5000",))


def test_one_packet_sent_again_is_no_sign_yet_and_a_healthy_connection_is_none() -> None:
    assert connections_of([TCP], {"43615", "43607"}) == Connections(("10.77.1.1",), ())


def test_sockets_of_other_processes_and_those_that_listen_count_for_nothing() -> None:
    assert connections_of([TCP, TCP6], {"1533", "7"}) == Connections()
    assert connections_of([TCP + LOOPBACK], {"813"}) == Connections(), "others cannot reach this address"


def test_of_many_a_few_are_kept() -> None:
    head, row = TCP6.splitlines()[:2]
    rows = [
        row.replace("01000000:", f"{number:08X}:").replace("02000000:", f"{number:08X}:").replace("43603", f"{number}")
        for number in range(1, 2_001)
    ]
    found = connections_of(["\n".join([head, *rows])], {str(number) for number in range(1, 2_001)})
    assert len(found.addresses) == len(found.unreached) == MAX_ADDRESSES


fields = st.one_of(
    st.text(max_size=40), st.sampled_from(["01", "43603", "01:00000081", "-0000001:1", "0100007F:-1", ":", "0100007F"])
)
odd_rows = st.lists(fields, max_size=14).map(" ".join)


@given(st.lists(odd_rows | st.sampled_from(TCP6.splitlines()), max_size=5))
def test_a_row_that_is_none_is_passed_over(rows: list[str]) -> None:
    found = connections_of(["\n".join(["", *rows])], {"43603", "", "01"})
    assert len(found.addresses) + len(found.unreached) <= 2 * MAX_ADDRESSES
    find_socket("\n".join(["", *rows]), "43603")


@given(st.text(alphabet="0123456789ABCDEFabcdef:- _+", max_size=40) | st.text(max_size=40))
def test_what_is_no_address_is_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_address(text).rpartition(":")[0]


def test_a_process_has_those_of_its_open_files(tmp_path: Path) -> None:
    files = tmp_path / "4711" / "fd"
    (files.parent / "net").mkdir(parents=True)
    files.mkdir()
    for number, target in enumerate(("/dev/null", "socket:[43605]", "pipe:[43603]", "socket:[9]")):
        (files / str(number)).symlink_to(target)
    (files.parent / "net" / "tcp6").write_text(TCP6)
    assert Process(4711, tmp_path).connections() == Connections(("10.77.1.1",), ("10.77.1.2:5000",))
    assert Process(4712, tmp_path).connections() == Connections(), "it has ended"
