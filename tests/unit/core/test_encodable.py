"""Text from outside, made such that UTF-8 can encode it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr import identity
from otel_fr.config import Config
from otel_fr.encodable import encodable, load_json
from otel_fr.identity import incident_id
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.otlp_attributes import attribute

ODD = "a\udcff\ud800b"
"""As ``os.fsdecode`` and ``json.loads`` make of bytes and escapes that are not Unicode."""

json_texts = st.text(st.characters(codec=None, categories=None))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | json_texts,
    lambda inner: st.lists(inner) | st.dictionaries(json_texts, inner),
)


def cleaned(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return value


@given(json_values, st.booleans())
def test_json_of_any_texts_can_be_encoded_and_is_otherwise_unchanged(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert load_json(text) == cleaned(json.loads(text))


def test_pairs_stay_and_lone_surrogates_become_question_marks() -> None:
    assert load_json('["\\ud83d\\ude80", "\\ud83d", "\\uDE80x"]') == ["\N{ROCKET}", "?", "?x"]
    assert load_json(b'["\xed\xa0\x80", "\xff"]') == ["\ufffd\ufffd\ufffd", "\ufffd"]
    assert encodable(ODD) == "a??b"


def test_what_is_no_json_is_a_value_error() -> None:
    for text in ("", "{", b"\xff\xfe", '"\ud800'):
        with pytest.raises(ValueError):  # noqa: PT011  json's own texts
            load_json(text)


def test_ids_and_attributes_are_made_of_any_text() -> None:
    assert identity.run_id(ODD, 0, ODD) == identity.run_id("a??b", 0, "a??b")
    assert incident_id(ODD, ODD) == incident_id("a??b", "a??b")
    assert attribute(ODD, ODD).SerializeToString() == attribute("a??b", "a??b").SerializeToString()


def test_a_job_whose_name_is_not_utf8_has_one_that_can_be_sent() -> None:
    """Else its monitors could not ask for commands: ``WatchRequest`` refuses such text."""
    config = Config.from_env({"TORCHELASTIC_RUN_ID": ODD})
    assert config.job_id == "a??b"
    known = RankIdentity.of({"job_id": ODD, "host": ODD, "nonce": ODD, "service_name": ODD}, config, 1)
    assert (known.job_id, known.host, known.nonce, known.service) == ("a??b",) * 4
    assert known.resource({}).SerializeToString()
