#include "data.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace simdev {
namespace {

// Arithmetic on 16-bit numbers is done in 32 bits.
struct Bfloat16 {
  uint16_t bits;
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Bfloat16 from(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    wide += 0x7fff + ((wide >> 16) & 1);  // to the nearest, ties to even
    return {static_cast<uint16_t>(wide >> 16)};
  }
};

struct Half {
  uint16_t bits;
  operator float() const {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    if (exponent == 0) value = std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    return bits & 0x8000 ? -value : value;
  }
  static Half from(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    value = std::fabs(value);
    if (std::isnan(value)) return {0x7e00};
    if (value >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
    int exponent;
    std::frexp(value, &exponent);
    if (exponent < -13) return {static_cast<uint16_t>(sign | std::lrint(std::ldexp(value, 24)))};
    const long fraction = std::lrint(std::ldexp(value, 11 - exponent));
    return {static_cast<uint16_t>(sign | (((exponent + 14) << 10) + (fraction - 1024)))};
  }
};

template <class T>
struct Arithmetic {
  using Wide = T;
  static T from(Wide value) { return value; }
};
template <>
struct Arithmetic<Half> {
  using Wide = float;
  static Half from(float value) { return Half::from(value); }
};
template <>
struct Arithmetic<Bfloat16> {
  using Wide = float;
  static Bfloat16 from(float value) { return Bfloat16::from(value); }
};

// Calls `use` with a null pointer of the type.
template <class Use>
auto with_type(ncclDataType_t type, Use use) {
  switch (type) {
    case ncclInt8: return use(static_cast<int8_t*>(nullptr));
    case ncclUint8: return use(static_cast<uint8_t*>(nullptr));
    case ncclInt32: return use(static_cast<int32_t*>(nullptr));
    case ncclUint32: return use(static_cast<uint32_t*>(nullptr));
    case ncclInt64: return use(static_cast<int64_t*>(nullptr));
    case ncclUint64: return use(static_cast<uint64_t*>(nullptr));
    case ncclFloat16: return use(static_cast<Half*>(nullptr));
    case ncclFloat32: return use(static_cast<float*>(nullptr));
    case ncclFloat64: return use(static_cast<double*>(nullptr));
    case ncclBfloat16: return use(static_cast<Bfloat16*>(nullptr));
    default: throw std::invalid_argument("a type that is not reduced");
  }
}

template <class Wide>
Wide combined(Wide a, Wide b, int reduction) {
  switch (reduction) {
    case ncclProd: return static_cast<Wide>(a * b);
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return static_cast<Wide>(a + b);
  }
}

}  // namespace

size_t width_of(ncclDataType_t type) {
  if (!can_reduce(type)) return 1;
  return with_type(type, [](auto* null) { return sizeof *null; });
}

bool can_reduce(ncclDataType_t type) { return type >= ncclInt8 && type <= ncclBfloat16; }

void combine(void* into, const void* with, size_t count, ncclDataType_t type, int reduction) {
  with_type(type, [&]<class T>(T*) {
    using A = Arithmetic<T>;
    auto* a = static_cast<T*>(into);
    auto* b = static_cast<const T*>(with);
    for (size_t i = 0; i < count; i++) a[i] = A::from(combined<typename A::Wide>(a[i], b[i], reduction));
  });
}

void scale(void* elements, size_t count, ncclDataType_t type, double factor) {
  with_type(type, [&]<class T>(T*) {
    using A = Arithmetic<T>;
    auto* a = static_cast<T*>(elements);
    for (size_t i = 0; i < count; i++)
      a[i] = A::from(static_cast<typename A::Wide>(static_cast<typename A::Wide>(a[i]) * factor));
  });
}

double read_scalar(const void* scalar, ncclDataType_t type) {
  return with_type(type, [&]<class T>(T*) {
    return static_cast<double>(static_cast<typename Arithmetic<T>::Wide>(*static_cast<const T*>(scalar)));
  });
}

}  // namespace simdev
