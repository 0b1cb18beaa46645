/// What a frame must look like before anyone reads its fields: long enough for its kind, with
/// variable parts that fill it exactly. Pure; the bytes may be hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/trace/frames.h"

namespace primerl {

/// The CRC covers everything behind itself.
inline constexpr size_t kFrameCrcBegin = 8;

/// sizeof the struct of a TraceFrameKind; more than any frame has when there is no such kind.
size_t fixed_bytes(uint8_t kind);

/// `frame` is as long as its header says and at least fixed_bytes(); it begins at `offset`.
bool is_well_formed(std::span<const std::byte> frame, uint64_t offset);

}  // namespace primerl
