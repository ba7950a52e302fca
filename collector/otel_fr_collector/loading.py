"""The effective settings: from flags, environment, one TOML file and defaults, in this order.

pydantic-settings reads the same sources, but merges them before it validates. So its errors do not name the flag, the
variable or the key of the file that a bad value came from. It also ignores or refuses all unknown variables alike,
while Kubernetes' own must be distinguished from misspelt ones. It could replace about sixty lines of this module.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otel_fr.encodable import encodable
from otel_fr.option_names import OF_KUBERNETES, did_you_mean
from otel_fr.redaction import hide_password
from otel_fr_collector.given_files import read_text
from otel_fr_collector.settings import ENV_PREFIX, OPTIONS, Option, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BY_NAME = {option.name: option for option in OPTIONS}


class SettingsError(ValueError):
    """Settings that cannot be used; each line of the text names one and what it should be."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options, and ``--config`` and ``--check``, to a parser. Values stay text until `load`."""
    parser.epilog = (
        "Exit status: 0 stopped by a signal, or --check found no problem; 1 internal error; "
        "2 usage error or unusable setting."
    )
    parser.add_argument("--config", metavar="FILE", help=f"TOML file with options (environment: {ENV_PREFIX}CONFIG)")
    parser.add_argument("--check", action="store_true", help="check all settings, print them without secrets, and exit")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        group = groups.setdefault(option.section, parser.add_argument_group(option.section))
        default = "" if option.default is None else f" (default {option.default})"
        text = (option.text + default).replace("%", "%%")
        common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text}
        if option.is_switch:
            group.add_argument(f"--{option.name}", action=argparse.BooleanOptionalAction, **common)
        else:
            action = "append" if option.repeat else "store"
            group.add_argument(f"--{option.name}", action=action, metavar=option.metavar, **common)


def load(flags: Mapping[str, object], env: Mapping[str, str]) -> Settings:
    """The effective settings.

    Args:
        flags: parsed values of the arguments from `add_arguments`; names with ``_``.

    Raises:
        SettingsError: a value or a name cannot be used, or options do not fit together.
    """
    problems: list[str] = []
    source = "--config" if flags.get("config") else f"{ENV_PREFIX}CONFIG"
    file = flags.get("config") or env.get(f"{ENV_PREFIX}CONFIG")
    sources = [
        _from_flags(flags),
        _from_env(env, problems),
        _from_file(source, Path(str(file)), problems) if file else {},
    ]
    values: dict[str, Any] = {}
    for option in OPTIONS:
        given_by = (source[option.name] for source in sources if option.name in source)
        found = next((one for one in given_by if not (option.metavar == "URL" and _is_blank(one[1]))), None)
        if found is None:
            continue
        where, given = found
        try:
            values[option.name.replace("-", "_")] = _parse(option, given)
        except ValueError as error:
            problems.append(f"{where}: {hide_password(str(error))}")
    settings = Settings(**values, given=frozenset(values))
    problems += _misfits(settings)
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def show(settings: Settings) -> str:
    """The settings as a TOML file with the same effect, without secrets."""
    lines, section = [], ""
    for option in OPTIONS:
        value = getattr(settings, option.name.replace("-", "_"))
        if option.name == "otlp-http":
            value = settings.otlp_http_address or "off"
        if option.section != section:
            section = option.section
            lines += ["", f"# {section}"]
        if value is None:
            lines.append(f"# {option.name} is not set")
        elif isinstance(value, (bool, int, float)):
            lines.append(f"{option.name} = {json.dumps(value)}")
        elif isinstance(value, tuple):
            lines.append(f"{option.name} = {json.dumps([option.show(item) for item in value])}")
        else:
            text = ",".join(sorted(value)) if isinstance(value, frozenset) else option.show(str(value))
            lines.append(f"{option.name} = {json.dumps(text)}")
    return "\n".join(lines[1:]) + "\n"


_Source = dict[str, tuple[str, object]]


def _from_flags(flags: Mapping[str, object]) -> _Source:
    return {
        option.name: (f"--{option.name}", flags[key])
        for option in OPTIONS
        if (key := option.name.replace("-", "_")) in flags
    }


def _from_env(env: Mapping[str, str], problems: list[str]) -> _Source:
    known = {option.env: option for option in OPTIONS}
    found: _Source = {}
    for name, value in env.items():
        own = name.removeprefix(ENV_PREFIX)
        if own == name or own == "CONFIG" or not value:
            continue
        option = known.get(name)
        if option is not None:
            found[option.name] = (name, re.split(r"[,\s]+", value.strip()) if option.repeat else value)
        elif not OF_KUBERNETES.match(own):  # of a Service named otel-fr-collector
            problems.append(f"unknown option {name}{did_you_mean(name, known)}")
    return found


def _from_file(source: str, path: Path, problems: list[str]) -> _Source:
    """The settings of a TOML file, which the option or variable ``source`` names."""
    try:
        table = tomllib.loads(read_text(path))
    except OSError as error:
        problems.append(f"{source} {path}: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError) as error:  # the latter: nested too deep
        problems.append(f"{path} is not TOML: {error}")
        return {}
    found: _Source = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in _BY_NAME:
            found[name] = (f"{key} in {path}", value)
        else:
            problems.append(f"unknown option {key!r} in {path}{did_you_mean(name, _BY_NAME)}")
    return found


def _parse(option: Option, given: object) -> object:
    if option.is_switch:
        text = str(given).lower()
        if text not in ("true", "1", "yes", "false", "0", "no"):
            raise ValueError(f"{given!r} is not true or false")
        return text in ("true", "1", "yes")
    if option.repeat:
        items = given if isinstance(given, list) else [given]
        items = [item for item in items if option.metavar != "URL" or not _is_blank(item)]
        found = tuple(dict.fromkeys(option.parse(_text(option, item)) for item in items))
        names = [item[0] for item in found if isinstance(item, tuple)]  # of NAME=VALUE
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice} is given more than once")
        return found
    return option.parse(_text(option, given))


def _is_blank(given: object) -> bool:
    """Whether a value is blank text, or a list of blank texts, as from a manifest whose own variable is empty."""
    if isinstance(given, list):
        return all(map(_is_blank, given))
    return isinstance(given, str) and not given.strip()


def _text(option: Option, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a text or a number")
    text = str(value)
    if option.parse is not Path and encodable(text) != text:  # the name of a file may be any bytes
        raise ValueError(f"{text!r} is not UTF-8")
    return text


def _misfits(settings: Settings) -> list[str]:
    found = []
    for one, other in (("tls_cert", "tls_key"), ("forward_cert", "forward_key")):
        for given, missing in ((one, other), (other, one)):
            if getattr(settings, given) is not None and getattr(settings, missing) is None:
                found.append(f"--{given.replace('_', '-')} needs --{missing.replace('_', '-')}")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        found.append("--tls-client-ca needs --tls-cert and --tls-key")
    return found
