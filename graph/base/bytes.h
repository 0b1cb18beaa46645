/// Numbers as little-endian bytes at a position that the caller has checked. Any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace primerl {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are in memory");

template <class T>
void put_number(std::byte* at, std::type_identity_t<T> value) {
  std::memcpy(at, &value, sizeof(T));
}

template <class T>
T take_number(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// The next multiple of 8: bodies and Blobs begin at one.
constexpr size_t padded(size_t size) { return (size + 7) & ~size_t{7}; }

}  // namespace primerl
