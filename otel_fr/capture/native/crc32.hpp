// crc32 of zlib, without a library to link.
//
// Where the processor multiplies without carry: 16 bytes a step by two such products. Elsewhere: 8 bytes a step by tables
// (Intel's slicing-by-8), which are 8 KiB, and little of that is in the cache after the training thread has slept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "api.h"

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

// Both: `crc` is inverted, before and after.
inline uint32_t crc32_by_tables(const uint8_t* p, size_t size, uint32_t crc) {
  const auto& t = kCrc.table;
  for (; size >= 8; size -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = t[7][word & 0xFF] ^ t[6][word >> 8 & 0xFF] ^ t[5][word >> 16 & 0xFF] ^ t[4][word >> 24 & 0xFF] ^
          t[3][word >> 32 & 0xFF] ^ t[2][word >> 40 & 0xFF] ^ t[1][word >> 48 & 0xFF] ^ t[0][word >> 56];
  }
  for (; size; --size, ++p) crc = crc >> 8 ^ t[0][(crc ^ *p) & 0xFF];
  return crc;
}

#if defined(__x86_64__)

// The polynomial with bit n for the term y^n, y = 1/x: a step of one bit divides by y modulo this.
constexpr uint64_t kPolynomial = 0x1DB710641;

// Its inverse modulo y^64.
constexpr uint64_t inverse_polynomial() {
  uint64_t inverse = 0, rest = 1;
  for (int bit = 0; bit < 64; ++bit)
    if (rest >> bit & 1) {
      inverse |= uint64_t{1} << bit;
      rest ^= kPolynomial << bit;
    }
  return inverse;
}

constexpr uint64_t kInverse = inverse_polynomial();

// 1 / y^bits modulo the polynomial.
constexpr uint64_t divided_one(int bits) {
  uint64_t value = 1;
  for (int bit = 0; bit < bits; ++bit) value = (value & 1 ? value ^ kPolynomial : value) >> 1;
  return value;
}

constexpr uint64_t kDividedBy64 = divided_one(64), kDividedBy128 = divided_one(128);

// A word (the lower half) divided by y^64, as Montgomery does: the multiple of the polynomial that ends as the word
// does is added, so that the lower half is 0 and the upper half is the result.
__attribute__((target("pclmul"))) inline __m128i divided_word(__m128i word) {
  const __m128i constants = _mm_set_epi64x(kPolynomial, static_cast<int64_t>(kInverse));
  __m128i factor = _mm_clmulepi64_si128(word, constants, 0x00);
  return _mm_srli_si128(_mm_clmulepi64_si128(factor, constants, 0x10), 8);
}

OFR_HOT __attribute__((target("pclmul"))) inline uint32_t crc32_by_products(const uint8_t* p, size_t size,
                                                                            uint32_t crc) {
  auto load = [](const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  __m128i rest = _mm_cvtsi32_si128(static_cast<int>(crc));
  if (size >= 16) {
    // Two words are divided by y^128 and added to the next two; only the last ones are divided to the end.
    const __m128i constants = _mm_set_epi64x(kDividedBy64, kDividedBy128);
    __m128i words = _mm_xor_si128(load(p), rest);
    for (size -= 16, p += 16; size >= 16; size -= 16, p += 16) {
      __m128i first = _mm_clmulepi64_si128(words, constants, 0x00);
      __m128i second = _mm_clmulepi64_si128(words, constants, 0x11);
      words = _mm_xor_si128(_mm_xor_si128(first, second), load(p));
    }
    rest = divided_word(_mm_xor_si128(divided_word(words), _mm_srli_si128(words, 8)));
  }
  for (; size >= 8; size -= 8, p += 8)
    rest = divided_word(_mm_xor_si128(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), rest));
  return crc32_by_tables(p, size, static_cast<uint32_t>(_mm_cvtsi128_si32(rest)));
}

#endif

// `crc`: of the bytes before these; 0: there are none.
OFR_HOT inline uint32_t crc32(const void* data, size_t size, uint32_t crc = 0) {
  auto* bytes = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool has_products = __builtin_cpu_supports("pclmul");
  if (has_products) return ~crc32_by_products(bytes, size, ~crc);
#endif
  return ~crc32_by_tables(bytes, size, ~crc);
}

}  // namespace otel_fr
