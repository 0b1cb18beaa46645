/// Checks a frame before its fields are read: it must be long enough for its kind, and its variable
/// parts must fill it exactly. Pure; treats the bytes as untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/trace/frames.h"

namespace primerl {

/// The CRC covers all bytes from here to the end.
inline constexpr size_t kFrameCrcBegin = 8;

/// sizeof the struct of a TraceFrameKind; for an unknown kind, more than the size of any frame.
size_t fixed_bytes(uint8_t kind);

/// The body of a payload (the first) or one of its Blobs.
struct PayloadPart {
  uint64_t num_bytes = 0;
  bool is_stored = false;            // in the content store
  std::span<const std::byte> bytes;  // the bytes, or the 32 bytes of their SHA-256
};
/// Visits every part of a payload frame of at least its fixed size. False when they do not fill it
/// exactly; then the visit ends at the first part that does not fit.
bool visit_payload(std::span<const std::byte> frame,
                   const std::function<void(const PayloadPart&)>& visitor);

/// `frame` begins at `offset`; it has the length in its header and at least fixed_bytes() bytes.
bool is_well_formed(std::span<const std::byte> frame, uint64_t offset);

}  // namespace primerl
