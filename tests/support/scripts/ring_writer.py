"""Plays a rank that only appends records, as fast as it can, until it is killed. Arguments: folder, proof, capacity,
shapes, bytes of a call site."""

from __future__ import annotations

import sys
from pathlib import Path

from otel_fr.ring import RingWriter
from tests.support.ring_model import COMPLETION_LAG, GROUP, Program, Proof


def main() -> None:
    folder, proof_path = Path(sys.argv[1]), Path(sys.argv[2])
    capacity, shapes, site_bytes = (int(argument) for argument in sys.argv[3:6])
    program = Program(shapes, site_bytes)
    proof = Proof(proof_path)
    writer = RingWriter.create([folder], "ring", capacity, {"rank": 3})
    group = writer.add_group(GROUP)
    print(writer.path, flush=True)
    generation = 0
    words = proof.words
    number = 0
    while True:
        program.issue(writer, group, number)
        if writer.generation != generation:
            # The flip came before this record, so this record is the first of its generation.
            generation = writer.generation
            proof.note_generation(generation, number)
        words[0] = number + 1
        if number >= COMPLETION_LAG:
            program.complete(writer, group, number - COMPLETION_LAG)
            words[1] = number - COMPLETION_LAG + 1
        number += 1


if __name__ == "__main__":
    main()
