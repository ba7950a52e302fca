"""`make lint`'s own rules: how long a file may be, and phrases that docs/reference/glossary.md rules out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.support.paths import ROOT

LONGEST = 400
"""Most lines of a file, so that it can be read in one sitting."""

LONGER = {
    "collector/otel_fr_collector/incidents/book.py": 449,
    "collector/otel_fr_collector/jobs/run.py": 433,
}
"""Files that are longer. They may only become shorter, and then leave the list."""

CODE = re.compile(r"\.(py|cpp|hpp|c|h|js)$")
COMMENT = re.compile(r"\s*(?://|/?\*)")
DOCUMENT = re.compile(r"\.(md|ya?ml|html|tmpl|toml|proto)$|(^|/)(Makefile|NOTES\.txt)$|^(?!docs/|tests/).*\.json$")
"""JSON files count, except for those with recorded data."""
SERVED = re.compile(r"/(api_answers|rate_answers|incident|attribution/answer|web/api|web/endpoints)\.py$")
"""Modules with docstrings that are texts of /api/openapi.json."""
GLOSSARY = "docs/reference/glossary.md"
GENERATED = re.compile(r"_pb2\.pyi?$|/uplot\.min\.js$")


def files() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if not GENERATED.search(name)]


def too_long(names: list[str]) -> Iterator[str]:
    for name in filter(CODE.search, names):
        with open(ROOT / name, encoding="utf-8") as file:
            lines = sum(1 for _ in file)
        most = LONGER.get(name, LONGEST)
        if lines > most:
            yield f"{name}: {lines} lines, at most {most}: divide it"
        elif lines <= LONGEST and name in LONGER:
            yield f"{name}: {lines} lines: take it off the list in {__name__}"
    yield from (f"{name}: in the list of {__name__}, but not there" for name in LONGER.keys() - set(names))


def phrases() -> list[re.Pattern[str]]:
    """Return the first columns of the glossary's last two tables: phrases to avoid everywhere, and in documents."""
    tables = (ROOT / GLOSSARY).read_text(encoding="utf-8").split("|---|---|\n")[-2:]
    rows = [re.findall(r"^\|([^|]+)\|", table.partition("\n\n")[0], re.MULTILINE) for table in tables]
    patterns = ["|".join(r"\s+".join(phrase.split()) for phrase in listed) for listed in rows]
    return [re.compile(rf"\b({pattern})\b", re.IGNORECASE) for pattern in patterns]


def to_reword(names: list[str]) -> Iterator[str]:
    everywhere, in_documents = phrases()
    for name in names:
        if not DOCUMENT.search(name) and not CODE.search(name):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        shown = shown_texts(name, text) if in_documents.search(text) else ()
        for first, part, pattern in ((1, text, everywhere), *((line, part, in_documents) for line, part in shown)):
            for found in pattern.finditer(part):
                line = first + part.count("\n", 0, found.start())
                yield f'{name}:{line}: "{" ".join(found[0].split())}": {GLOSSARY} says what to write instead'


def shown_texts(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that users may read, with the lines where they begin.

    These are all of a document; the strings of Python, with docstrings only if they are served; and JavaScript without
    comments.
    """
    if DOCUMENT.search(name):
        yield 1, text
    elif name.endswith(".js"):
        yield from ((line, part) for line, part in enumerate(text.splitlines(), 1) if not COMMENT.match(part))
    elif name.endswith(".py") and not name.startswith("tests/"):
        nodes = list(ast.walk(ast.parse(text)))
        docstrings = [] if SERVED.search(name) else [node.value for node in nodes if isinstance(node, ast.Expr)]
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield node.lineno, node.value


def main() -> int:
    names = files()
    problems = [
        *too_long(names),
        *to_reword([name for name in names if name != GLOSSARY]),
    ]
    print(*problems, sep="\n", end="\n" * bool(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
