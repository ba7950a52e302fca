"""The rules: for each root of a wait, the first rule that has an outcome decides.

Stages are ordered by the strength of their evidence, strongest first: calls that do not fit together, then ranks that
wait for each other, then ranks that others wait for. A stage leaves out the roots that an earlier claim explains.
"""

from __future__ import annotations

from typing import Any, Final

from otel_fr.match.case import Case
from otel_fr.match.rules import blocked, cycles, devices, elsewhere, joined, mismatches, silent
from otel_fr.match.rules.claims import Claims, Stage, sentence_of

STAGES: Final[tuple[Stage[Any], ...]] = (
    mismatches.STAGE,
    cycles.STAGE,
    blocked.STAGE,
    *devices.STAGES,
    *silent.STAGES,
    *joined.STAGES,
    silent.UNRECORDED,
    *elsewhere.STAGES,
)


def rule_names() -> list[str]:
    """Return the names of all rules, in the order of the stages. A rule that several stages try is listed once."""
    return list(dict.fromkeys(rule.__name__ for stage in STAGES for rule in stage.rules))


def reference() -> str:
    """Return the stages and rules as the Markdown list of docs/concepts/verdicts.md."""
    lines: list[str] = []
    for stage in STAGES:
        lines.append(f"* **{stage.roots.__name__}**: {sentence_of(stage.roots)}")
        if stage.rules is blocked.STAGE.rules and stage is not blocked.STAGE:
            lines.append(f"    * the rules of **{blocked.STAGE.roots.__name__}**")
        else:
            lines += [f"    * `{rule.__name__}`: {sentence_of(rule)}" for rule in stage.rules]
    return "\n".join(lines)


def decide(case: Case) -> Claims:
    """Try the rules on all roots, and return their claims."""
    claims = Claims()
    for stage in STAGES:
        for root in stage.roots(case, claims):
            for rule in stage.rules:
                outcome = rule(case, claims, root)
                if outcome is not None:
                    claims.take(rule.__name__, outcome)
                    break
    return claims
