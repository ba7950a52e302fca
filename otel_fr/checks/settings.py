"""All options of the checks and the rendezvous handler, from the environment and torchrun's ``--rdzv-conf``.

The variable ``OTEL_FR_CHECK_PATHS`` is ``check_paths`` in ``--rdzv-conf``, which takes precedence.
docs/reference/environment.md lists the options. The collector's address and the OTLP endpoints come from
`otel_fr.config`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_fr.checks.model import CLOCK, COLLECTOR, KINDS
from otel_fr.config import ATTRIBUTION_OPTIONS, CHECK_OPTIONS, COLLECTOR_VARIABLE, ENDPOINTS, has_endpoint
from otel_fr.option_names import did_you_mean
from otel_fr.ring.files import SHARED_MEMORY
from otel_fr.sizes import parse_size

_PREFIX: Final = "OTEL_FR_"
_NONE: Final = "none"

DEFAULT_TIMEOUT: Final = 15.0
"""Seconds for one check, as in nvidia-resiliency-ext for a mounted file system."""
NODE_HEALTH_ARGUMENTS: Final = "--no-slurm"
"""The arguments that nvidia-resiliency-ext passes to the node health service."""
MEMORY_TIMEOUT: Final = 50.0
"""Seconds until the GPUs' memory must be free: ``gpu_memory_reclaim_timeout`` of NVIDIA's extension."""
TEMPORARY: Final = "/tmp"  # noqa: S108 - only its free space is asked for
"""Used if TMPDIR is not set. `tempfile` would test the folder, and may hang if its file system does not answer."""
SHARED_MEMORY_NEEDED: Final = 32 << 20
"""Bytes for the rings of a node's ranks. Docker's default is a file system of 64 MiB."""
TEMPORARY_NEEDED: Final = 64 << 20
"""Bytes for the sockets, logs and caches of launcher and ranks."""
ADVISE, ACT, OFF = "advise", "act", "off"
ATTRIBUTION_SECONDS: Final = 5.0
"""Default time to wait for advice. A failure becomes an incident within a second or two."""
_MAX_SECONDS: Final = 86_400.0
MAX_PATHS: Final = 200
"""Most paths to check. Each check starts a process, so this many take seconds of a CPU."""

_MAX_NODES: Final = 1e9
_NODE_NUMBERS: Final = ("SLURM_PROCID", "JOB_COMPLETION_INDEX")


class SettingsError(ValueError):
    """An option cannot be used. The text names it."""


@dataclass(frozen=True)
class CheckSettings:
    """What is checked on this node.

    Attributes:
        kinds: the kinds of checks that run, from `otel_fr.checks.model.KINDS`.
        advisory: the kinds of checks whose failure is only a warning.
        paths: absolute paths.
        space: path -> bytes that must be free there.
        node_health: path of a Unix socket; empty: none.
        gpus: how many GPUs there must be; None: unknown.
        collector: the collector's HTTP address; empty: unknown.
        endpoints: OTLP endpoints.
        timeout, memory_timeout: seconds.
    """

    kinds: frozenset[str]
    advisory: frozenset[str]
    timeout: float
    paths: tuple[str, ...]
    space: Mapping[str, int]
    node_health: str
    node_health_arguments: tuple[str, ...]
    gpus: int | None
    memory_timeout: float
    collector: str
    endpoints: tuple[str, ...]

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ, conf: Mapping[str, object] | None = None) -> CheckSettings:
        """Read the settings.

        Args:
            conf: torchrun's ``--rdzv-conf``.

        Raises:
            SettingsError: a value cannot be used.
        """
        given = _Given(env, conf or {})
        given.refuse_unknown("OTEL_FR_CHECK", CHECK_OPTIONS)
        space = {SHARED_MEMORY: SHARED_MEMORY_NEEDED, os.path.abspath(env.get("TMPDIR") or TEMPORARY): TEMPORARY_NEEDED}
        return cls(
            kinds=given.kinds("OTEL_FR_CHECKS", frozenset(KINDS)),
            advisory=given.kinds("OTEL_FR_CHECK_ADVISORY", frozenset({CLOCK, COLLECTOR})),
            timeout=given.number("OTEL_FR_CHECK_TIMEOUT", DEFAULT_TIMEOUT, 0.1, _MAX_SECONDS),
            paths=given.paths("OTEL_FR_CHECK_PATHS"),
            space=given.sizes("OTEL_FR_CHECK_SPACE", space),
            node_health=given.text("OTEL_FR_CHECK_NODE_HEALTH").removeprefix("unix://").removeprefix("unix:"),
            node_health_arguments=given.words("OTEL_FR_CHECK_NODE_HEALTH_ARGS", NODE_HEALTH_ARGUMENTS),
            gpus=given.whole("OTEL_FR_CHECK_GPUS", 0.0, 1.0, 4_096.0) or None,
            memory_timeout=given.number("OTEL_FR_CHECK_GPU_MEMORY_TIMEOUT", MEMORY_TIMEOUT, 0.0, _MAX_SECONDS),
            collector=env.get(COLLECTOR_VARIABLE, "").strip(),
            endpoints=tuple(dict.fromkeys(url for name in ENDPOINTS if (url := env.get(name, "").strip()))),
        )


@dataclass(frozen=True)
class AttributionSettings:
    """Whether to ask the collector before a restart, and what to do with its advice.

    Attributes:
        mode: `OFF`, `ADVISE` (shown only) or `ACT` (followed).
        seconds: how long a node that follows advice waits for it.
        can_ask: True if there is a collector to ask.
    """

    mode: str
    seconds: float
    can_ask: bool

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ, conf: Mapping[str, object] | None = None) -> AttributionSettings:
        """Read the settings. Arguments and errors: as in `CheckSettings.read`."""
        given = _Given(env, conf or {})
        given.refuse_unknown("OTEL_FR_ATTRIBUTION", ATTRIBUTION_OPTIONS)
        known = has_endpoint(env) or bool(env.get(COLLECTOR_VARIABLE, "").strip())
        return cls(
            given.choice("OTEL_FR_ATTRIBUTION", (ADVISE, ACT, OFF)),
            given.number("OTEL_FR_ATTRIBUTION_SECONDS", ATTRIBUTION_SECONDS, 0.0, _MAX_SECONDS),
            known,
        )


def node_rank(env: Mapping[str, str] = os.environ, conf: Mapping[str, object] | None = None) -> int | None:
    """Return this node's number in its infrastructure, which orders the nodes, or None if it is unknown.

    It is ``OTEL_FR_NODE_RANK``, else Slurm's task number, else the index of a pod of a Kubernetes Job.

    Raises:
        SettingsError: ``OTEL_FR_NODE_RANK`` is not a whole number. Other variables that are not are ignored.
    """
    given = _Given(env, conf or {})
    if given.text("OTEL_FR_NODE_RANK"):
        return given.whole("OTEL_FR_NODE_RANK", 0.0, 0.0, _MAX_NODES)
    texts = (env.get(name, "").strip() for name in _NODE_NUMBERS)
    return next((int(text) for text in texts if text.isdecimal()), None)


@dataclass(frozen=True)
class _Given:
    env: Mapping[str, str]
    conf: Mapping[str, object]

    def text(self, name: str) -> str:
        value = self.conf.get(_key(name))
        return str(self.env.get(name, "") if value is None else value).strip()

    def parts(self, name: str) -> list[str]:
        return [part.strip() for part in self.text(name).split(":") if part.strip()]

    def refuse_unknown(self, prefix: str, options: tuple[str, ...]) -> None:
        """Raise SettingsError for an unknown option: a misspelt option would silently disable a check."""
        _refuse_unknown(self.env, prefix, options)
        _refuse_unknown(self.conf, _key(prefix), tuple(map(_key, options)), "--rdzv-conf ")

    def paths(self, name: str) -> tuple[str, ...]:
        """Return absolute paths."""
        found = tuple(dict.fromkeys(os.path.abspath(part) for part in self.parts(name)))
        if len(found) > MAX_PATHS:
            raise SettingsError(f"{self._shown(name)} names {len(found)} paths; at most {MAX_PATHS} are checked")
        return found

    def words(self, name: str, default: str) -> tuple[str, ...]:
        """Split as a shell does."""
        text = self.text(name) or default
        try:
            return tuple(shlex.split(text))
        except ValueError:
            raise self._error(name, text, "words as a shell splits them") from None

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self.text(name)
        try:
            value = float(text or default)
        except ValueError:
            value = float("nan")
        if text and not low <= value <= high:
            raise self._error(name, text, f"a number from {low:g} to {high:g}")
        return value

    def whole(self, name: str, default: float, low: float, high: float) -> int:
        value = self.number(name, default, low, high)
        if not value.is_integer():
            raise self._error(name, self.text(name), "a whole number")
        return int(value)

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        """Return one of ``values``, the first if the option is not set."""
        text = self.text(name).lower() or values[0]
        if text not in values:
            raise self._error(name, text, f"one of {', '.join(values)}")
        return text

    def kinds(self, name: str, default: frozenset[str]) -> frozenset[str]:
        """Read a list separated by commas or colons: in ``--rdzv-conf``, commas already separate options."""
        text = self.text(name).lower()
        if not text:
            return default
        found = frozenset(word.strip() for word in re.split("[,:]", text) if word.strip()) - {_NONE}
        if not found <= set(KINDS):
            raise self._error(name, text, f"a list of {', '.join(KINDS)}, or {_NONE}")
        return found

    def sizes(self, name: str, default: Mapping[str, int]) -> Mapping[str, int]:
        parts = self.parts(name)
        if not parts:
            return default
        found: dict[str, int] = {}
        for part in parts if parts != [_NONE] else ():
            path, equals, size = part.rpartition("=")
            if not equals or not path.strip():
                raise self._error(name, part, "PATH=SIZE, such as /dev/shm=64MiB")
            try:
                found[os.path.abspath(path.strip())] = 0 if size.strip() == "0" else parse_size(size)
            except ValueError as error:
                raise SettingsError(f"{self._shown(name)}: {error}") from None
        return found

    def _error(self, name: str, text: str, wanted: str) -> SettingsError:
        return SettingsError(f"{self._shown(name)}={text!r} is not {wanted}")

    def _shown(self, name: str) -> str:
        key = _key(name)
        return f"--rdzv-conf {key}" if self.conf.get(key) is not None else name


def _key(name: str) -> str:
    return name.removeprefix(_PREFIX).lower()


def _refuse_unknown(given: Mapping[str, object], prefix: str, options: tuple[str, ...], where: str = "") -> None:
    for name in given:
        if name.startswith(prefix) and name not in options:
            raise SettingsError(f"{where}{name} is not an option{did_you_mean(name, options)}")
