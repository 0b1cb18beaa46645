/// AgentFrames: agent messages as numbered frames, and the greeting that comes before them.
///
/// A frame is one message of the connection: the header of docs/formats/wire.md (80 bytes) and the
/// body. Frames are numbered from 1 in each direction, so a frame that is lost with a broken
/// connection is detected. The greeting has a fixed layout that no version changes, so programs of
/// any two versions can identify themselves. Sizes announced by the peer are checked before memory
/// is allocated. One object per connection; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/wire/agent_messages.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

/// Longest frame that either end accepts.
inline constexpr size_t kAgentFrameBytesMax = kFrameHeaderBytes + kMessageBytesMax;
inline constexpr size_t kGreetingVersionBytesMax = 64;

/// The facts about a sender that both ends must agree on.
struct AgentGreeting {
  uint32_t agent_version = kAgentVersion;
  uint32_t control_version = 0;
  uint64_t agent_types = 0;  // hash of agent_message_catalog()
  uint64_t types = 0;        // hash of the catalog that the actors use
  uint64_t challenge = 0;    // of an agent: chosen at random for this connection, see
                             // challenge_file()
  std::string program;       // version of primerl-graph

  friend bool operator==(const AgentGreeting&, const AgentGreeting&) = default;
};

/// The greeting of this program.
AgentGreeting own_greeting(uint64_t types, std::string program);

/// CHECKs that `program` has at most kGreetingVersionBytesMax bytes.
std::vector<std::byte> encode_greeting(const AgentGreeting& greeting);
bool is_greeting(std::span<const std::byte> frame);
/// kCorrupt when the frame is not a greeting.
Result<AgentGreeting> decode_greeting(std::span<const std::byte> frame);
/// ok, or an Error that names each difference with both values. The value of `ours` is called "this
/// program".
Status check_greeting(const AgentGreeting& theirs, const AgentGreeting& ours,
                      const std::string& who);

class AgentFrames {
 public:
  AgentFrames() : types_(agent_message_catalog()) {}

  /// The next frame to send. kInvalid: the message is too long.
  Result<std::vector<std::byte>> encode(const Payload& message);
  /// kCorrupt: not an agent frame, or not the next one.
  Result<Payload> decode(std::span<const std::byte> frame);

 private:
  const WireTypes types_;
  uint64_t num_sent_ = 0;
  uint64_t num_received_ = 0;
};

/// A control plane writes the agent's challenge into this file, and the agent reads it. That proves
/// that the run folder is shared and that the control plane runs as the agent's user.
std::string challenge_file(uint64_t challenge);
std::string challenge_text(uint64_t challenge);

/// At most `bytes_max` bytes; a text that was cut ends in " ...".
std::string cut(std::string text, size_t bytes_max);

/// Converts an Error to its wire form, cut to its limits, and back.
AgentFault to_fault(const Error& error);
/// CHECKs that the fault has a text.
Error to_error(const AgentFault& fault);

}  // namespace primerl
