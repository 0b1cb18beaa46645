/// One input of the frame fuzzer: a header frame, followed by a body that is decoded as every
/// message type. tests/wire/frame_test.cc runs it over the corpus.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "actors/messages/catalog.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

inline void fuzz_frame(std::span<const std::byte> bytes) {
  static const WireTypes types(message_catalog());
  const auto head = bytes.first(std::min(bytes.size(), kFrameHeaderBytes));
  const auto body = bytes.subspan(head.size());
  FrameHeader header;
  if (decode_frame_header(head, kMessageBytesMax, header) == FrameRefusal::kNone) {
    // An accepted header must be equal to its own encoding.
    std::array<std::byte, kFrameHeaderBytes> again;
    encode_frame_header(header, again);
    CHECK(std::equal(again.begin(), again.end(), head.begin()), "a header did not round trip");
    (void)decode_wire(header, body, {}, types);
  }
  for (const auto* type : message_catalog()) {
    const auto payload = decode_message(*type, body);
    if (payload.ok()) CHECK(encode_message(*payload).ok(), "a body did not round trip");
  }
}

}  // namespace primerl
