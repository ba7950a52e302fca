"""Machines that do not reach each other, by what the kernels of their ranks cannot send."""

from __future__ import annotations

from typing import Any

from otel_fr.match import Place, Rank
from otel_fr.match.model import Evidence
from otel_fr.match.texts.ranks import unreached_texts
from tests.support.evidence import rank

HOSTS = ("n0", "n1", "n2", "n3")


def on(number: int, *unreached: str, address: str = "", **more: Any) -> Rank:
    """A rank alone on its host."""
    own = address or f"10.0.0.{number}"
    return rank(number, 5, 4, place=Place(HOSTS[number]), addresses=(own,), unreached=unreached, **more)


def texts(*ranks: Rank) -> tuple[str, list[str]]:
    evidence = Evidence(groups={}, calls=(), ranks={one.rank: one for one in ranks}, window=3.0)
    return unreached_texts(evidence, evidence.ranks)


def test_one_side_is_enough() -> None:
    assert texts(on(0, "10.0.0.1:41234"), on(1))[0] == "hosts n0 and n1 do not reach each other"
    assert texts(on(0, "[fd00::1]:41234"), on(1, address="fd00::1"))[0] == "hosts n0 and n1 do not reach each other"


def test_a_host_that_several_do_not_reach_is_named_first() -> None:
    assert texts(on(0, "10.0.0.1:1"), on(1), on(2, "10.0.0.1:1"), on(3))[0] == "host n1 does not reach n0, n2"


def test_pairs_without_a_common_host() -> None:
    found = texts(on(0, "10.0.0.1:1"), on(1), on(2, "10.0.0.3:1"), on(3))[0]
    assert found == "hosts n0 and n1, n2 and n3 do not reach each other"


def test_an_address_of_no_host_of_the_job_or_of_several_stays_an_address() -> None:
    assert texts(on(0, "192.0.2.1:443"), on(1)) == (
        "",
        ["192.0.2.1:443 has not acknowledged what rank 0 sent to it"],
    )
    same = "172.17.0.2"
    assert texts(on(0, f"{same}:1"), on(1, address=same), on(2, address=same))[0] == ""


def test_a_rank_of_the_same_host_makes_no_pair() -> None:
    assert texts(on(0, "10.0.0.0:1"))[0] == ""
