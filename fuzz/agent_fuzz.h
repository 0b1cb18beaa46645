/// One input of the agent fuzzer. Its hostile bytes are used as a greeting, as a frame, and as the
/// body of every agent message with a valid header and number. tests/control/agent_fuzz_test.cc
/// runs it over the corpus and over mutations of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/wire/agent_frames.h"

namespace primerl {

inline void fuzz_greeting(std::span<const std::byte> bytes) {
  const auto greeting = decode_greeting(bytes);
  if (!greeting.ok()) return;
  const auto again = decode_greeting(encode_greeting(*greeting));
  CHECK(again.ok() && *again == *greeting, "a greeting did not round trip");
}

/// Returns the number of accepted frames.
inline size_t fuzz_agent_frame(std::span<const std::byte> bytes) {
  AgentFrames frames, others;
  const auto message = frames.decode(bytes);
  if (!message.ok()) return 0;
  const auto again = others.encode(*message);
  CHECK(again.ok(), "a frame could not be written again");
  AgentFrames reader;
  CHECK(reader.decode(*again).ok(), "a frame did not round trip");
  return 1;
}

/// Decodes the bytes as the body of each agent message. Returns how many message types accept them.
inline size_t fuzz_agent_bodies(std::span<const std::byte> bytes) {
  static const WireTypes types(agent_message_catalog());
  size_t num_taken = 0;
  for (uint32_t id = 1; id <= types.size(); ++id) {
    FrameHeader header;
    header.type = id;
    header.flags = kFrameControl;
    header.sequence = 1;
    header.payload_bytes = bytes.size();
    if (decode_wire(header, bytes, {}, types).refusal == FrameRefusal::kNone) ++num_taken;
  }
  return num_taken;
}

inline void fuzz_agent(std::span<const std::byte> bytes) {
  fuzz_greeting(bytes);
  (void)fuzz_agent_frame(bytes);
  (void)fuzz_agent_bodies(bytes);
}

}  // namespace primerl
