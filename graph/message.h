/// Message: the requirements for a message struct.
///
/// A message is a struct of values with a name, a version and one `fields()`:
///
///   struct PolicyLive {
///     static constexpr std::string_view kName = "PolicyLive";
///     static constexpr uint32_t kVersion = 1;
///     PolicyVersion version;
///     template <class F> static void fields(F& f) { f("version", &PolicyLive::version); }
///   };
///
/// Immutable after send; at most 1 MiB without its Blobs, long arrays and long texts; no tenant
/// field (the envelope has it), no measured durations (they would differ between a run and its
/// replay).
#pragma once

#include <concepts>
#include <string_view>

#include "graph/wire.h"

namespace primerl {

template <class T>
concept Message =
    std::default_initializable<T> && std::copy_constructible<T> && wire::HasFields<T> && requires {
  { T::kName } -> std::convertible_to<std::string_view>;
  { T::kVersion } -> std::convertible_to<uint32_t>;
};

inline constexpr size_t kMessageBytesMax = size_t{1} << 20;
/// Longer arrays of numbers and longer texts are stored beside the body, like Blobs
/// (FieldWriter::array), so a message may have a context of any length.
inline constexpr size_t kArrayBytesInBodyMax = size_t{1} << 10;
inline constexpr size_t kTextBytesInBodyMax = size_t{16} << 10;

}  // namespace primerl
