"""Both ways to compute the ring writer's crc32, bit by bit compared."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from otel_fr.capture.native import build, store

_PROGRAM = """
#include <cstdio>
#include <vector>
#include "crc32.hpp"
using namespace otel_fr;

static uint32_t by_bits(const uint8_t* p, size_t size, uint32_t crc) {
  for (; size; --size, ++p) {
    crc ^= *p;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return crc;
}

int main() {
  uint32_t random = 1;
  for (size_t size = 0; size < 300; ++size) {
    std::vector<uint8_t> bytes(size);
    for (auto& byte : bytes) byte = (random = random * 1664525 + 1013904223) >> 24;
    for (uint32_t start : {0u, ~0u, random}) {
      uint32_t expected = by_bits(bytes.data(), size, start);
      if (crc32_by_tables(bytes.data(), size, start) != expected) return std::printf("tables: %zu bytes\\n", size);
#if defined(__x86_64__)
      if (__builtin_cpu_supports("pclmul") && crc32_by_products(bytes.data(), size, start) != expected)
        return std::printf("products: %zu bytes\\n", size);
#endif
    }
  }
  std::printf("%08x\\n", crc32("123456789", 9));
}
"""


def test_all_ways_agree(tmp_path: Path) -> None:
    compiler = build.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(_PROGRAM)
    options = shlex.split("-std=c++17 -O1 -Wall -Wextra -Werror")
    subprocess.run([*compiler, *options, f"-I{store.FOLDER}", str(source), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("cbf43926\n", 0), done.stderr  # the check value of CRC-32
