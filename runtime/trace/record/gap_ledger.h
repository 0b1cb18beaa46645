/// GapLedger: counts the frames that could not be written since the last gap frames, by group. A
/// value; its owner must guard it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/trace/frames.h"

namespace primerl {

/// The header of a frame; length and CRC are filled in when it is written.
TraceFrameHeader frame_head(TraceFrameKind kind, uint32_t group = UINT32_MAX);
/// Bytes of a frame without a tail.
template <class F>
std::span<std::byte> bytes_of(F& frame) {
  return std::as_writable_bytes(std::span(&frame, 1));
}

class GapLedger {
 public:
  /// `head` is the fixed part of the lost frame.
  void lose(std::span<const std::byte> head);
  /// The gap frames to write, by group; the ledger is empty afterwards.
  std::vector<GapFrame> take();

 private:
  std::map<uint32_t, GapFrame> gaps_;
};

}  // namespace primerl
