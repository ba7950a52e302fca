// zlib's crc32, without a library to link. Tables allow 8 bytes per step (Intel's slicing-by-8). With one byte per
// step, the crc would take as long as the rest of writing a record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace otel_fr {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the ring file is little endian");

struct CrcTables {
  uint32_t table[8][256];
  constexpr CrcTables() : table() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
      table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; ++byte)
      for (int step = 1; step < 8; ++step)
        table[step][byte] = table[step - 1][byte] >> 8 ^ table[0][table[step - 1][byte] & 0xFF];
  }
};

inline constexpr CrcTables kCrc{};

// `crc`: the crc32 of the preceding bytes; 0: there are none.
inline uint32_t crc32(const void* data, size_t size, uint32_t crc = 0) {
  const auto& t = kCrc.table;
  auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = t[7][word & 0xFF] ^ t[6][word >> 8 & 0xFF] ^ t[5][word >> 16 & 0xFF] ^ t[4][word >> 24 & 0xFF] ^
          t[3][word >> 32 & 0xFF] ^ t[2][word >> 40 & 0xFF] ^ t[1][word >> 48 & 0xFF] ^ t[0][word >> 56];
  }
  for (; size; --size, ++p) crc = crc >> 8 ^ t[0][(crc ^ *p) & 0xFF];
  return ~crc;
}

}  // namespace otel_fr
