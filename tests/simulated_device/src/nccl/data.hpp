// Elements: their sizes, and arithmetic on them.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace simdev {

size_t width_of(ncclDataType_t type);  // bytes
bool can_reduce(ncclDataType_t type);  // false: the 8-bit floating-point types, which are only moved

// into[i] = into[i] op with[i]. If the result is divided or scaled afterwards, op is a sum.
void combine(void* into, const void* with, size_t count, ncclDataType_t type, int reduction);
void scale(void* elements, size_t count, ncclDataType_t type, double factor);
double read_scalar(const void* scalar, ncclDataType_t type);

}  // namespace simdev
