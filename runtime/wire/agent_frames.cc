#include "runtime/wire/agent_frames.h"

#include <algorithm>
#include <array>

#include "graph/base/bytes.h"
#include "runtime/wire/control_messages.h"

namespace primerl {
namespace {

constexpr std::string_view kMagic = "PRAGENT\n";
// magic, agent version, control version, agent types, types, challenge, length of the program's
// version
constexpr size_t kGreetingBytes = 8 + 4 + 4 + 8 + 8 + 8 + 4;

Error corrupt(std::string_view what) {
  return error(Code::kCorrupt, "an agent frame was refused: {}", what);
}

}  // namespace

AgentGreeting own_greeting(uint64_t types, std::string program) {
  AgentGreeting greeting;
  greeting.control_version = kControlVersion;
  greeting.agent_types = WireTypes(agent_message_catalog()).hash();
  greeting.types = types;
  greeting.program = std::move(program);
  return greeting;
}

std::vector<std::byte> encode_greeting(const AgentGreeting& greeting) {
  CHECK(greeting.program.size() <= kGreetingVersionBytesMax, "a version that long");
  std::vector<std::byte> bytes(kGreetingBytes + greeting.program.size());
  std::byte* at = bytes.data();
  std::transform(kMagic.begin(), kMagic.end(), at, [](char c) { return std::byte(c); });
  put_number<uint32_t>(at + 8, greeting.agent_version);
  put_number<uint32_t>(at + 12, greeting.control_version);
  put_number<uint64_t>(at + 16, greeting.agent_types);
  put_number<uint64_t>(at + 24, greeting.types);
  put_number<uint64_t>(at + 32, greeting.challenge);
  put_number<uint32_t>(at + 40, static_cast<uint32_t>(greeting.program.size()));
  std::transform(greeting.program.begin(), greeting.program.end(), at + kGreetingBytes,
                 [](char c) { return std::byte(c); });
  return bytes;
}

bool is_greeting(std::span<const std::byte> frame) {
  return frame.size() >= kMagic.size() &&
         std::equal(kMagic.begin(), kMagic.end(), frame.begin(),
                    [](char c, std::byte b) { return std::byte(c) == b; });
}

Result<AgentGreeting> decode_greeting(std::span<const std::byte> frame) {
  if (!is_greeting(frame) || frame.size() < kGreetingBytes) return corrupt("no greeting");
  AgentGreeting greeting;
  greeting.agent_version = take_number<uint32_t>(frame.data() + 8);
  greeting.control_version = take_number<uint32_t>(frame.data() + 12);
  greeting.agent_types = take_number<uint64_t>(frame.data() + 16);
  greeting.types = take_number<uint64_t>(frame.data() + 24);
  greeting.challenge = take_number<uint64_t>(frame.data() + 32);
  const uint32_t length = take_number<uint32_t>(frame.data() + 40);
  // Skips fields that a later version appends.
  if (length > kGreetingVersionBytesMax || length > frame.size() - kGreetingBytes)
    return corrupt("a greeting whose version is longer than it says");
  for (const std::byte each : frame.subspan(kGreetingBytes, length)) {
    const char c = static_cast<char>(each);
    greeting.program += c >= ' ' && c <= '~' ? c : '?';
  }
  return greeting;
}

Status check_greeting(const AgentGreeting& theirs, const AgentGreeting& ours,
                      const std::string& who) {
  const auto differs = [&](std::string_view what, const auto& its, const auto& own) {
    return error(Code::kInvalid, "{} of {} is '{}', of this program '{}'", what, who, its, own)
        .note("both machines need the same build of primerl-graph and primerl-worker");
  };
  if (theirs.program != ours.program)
    return differs("the program version", theirs.program, ours.program);
  if (theirs.agent_version != ours.agent_version)
    return differs("the agent version", theirs.agent_version, ours.agent_version);
  if (theirs.control_version != ours.control_version)
    return differs("the control version", theirs.control_version, ours.control_version);
  if (theirs.agent_types != ours.agent_types)
    return differs("the table of agent messages", fmt::format("{:016x}", theirs.agent_types),
                   fmt::format("{:016x}", ours.agent_types));
  if (theirs.types != ours.types)
    return differs("the message table", fmt::format("{:016x}", theirs.types),
                   fmt::format("{:016x}", ours.types));
  return ok();
}

Result<std::vector<std::byte>> AgentFrames::encode(const Payload& message) {
  FrameHeader header;
  header.flags = kFrameControl;
  header.sequence = num_sent_ + 1;
  ASSIGN_OR_RETURN(const auto wire, encode_wire(message, header, types_));
  std::vector<std::byte> frame(kFrameHeaderBytes + wire.body.size());
  encode_frame_header(wire.header, std::span(frame).first<kFrameHeaderBytes>());
  std::copy(wire.body.begin(), wire.body.end(), frame.begin() + kFrameHeaderBytes);
  ++num_sent_;
  return frame;
}

Result<Payload> AgentFrames::decode(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) return corrupt("it is shorter than a header");
  FrameHeader header;
  const auto refusal =
      decode_frame_header(frame.first(kFrameHeaderBytes), kMessageBytesMax, header);
  if (refusal != FrameRefusal::kNone) return corrupt(to_string(refusal));
  const auto body = frame.subspan(kFrameHeaderBytes);
  if (header.num_frames != kFrameCountMin) return corrupt("agent messages carry no blobs");
  if (header.payload_bytes != body.size()) return corrupt(to_string(FrameRefusal::kBytesDiffer));
  if (header.sequence != num_received_ + 1)
    return error(Code::kCorrupt, "the connection broke: frame {} follows {}", header.sequence,
                 num_received_);
  auto decoded = decode_wire(header, body, {}, types_);
  if (decoded.refusal != FrameRefusal::kNone)
    return corrupt(decoded.error ? decoded.error->message() : to_string(decoded.refusal));
  ++num_received_;
  return std::move(decoded.payload);
}

std::string challenge_file(uint64_t challenge) { return fmt::format(".agent-{:016x}", challenge); }
std::string challenge_text(uint64_t challenge) { return fmt::format("{:016x}\n", challenge); }

std::string cut(std::string text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  constexpr std::string_view kMore = " ...";
  text.resize(bytes_max - kMore.size());
  return text.append(kMore);
}

AgentFault to_fault(const Error& error) {
  AgentFault fault{
      static_cast<uint8_t>(error.code()), cut(error.message(), kAgentFaultBytesMax), {}};
  for (const std::string& note : error.notes())
    if (fault.notes.size() < kFaultNotesMax) fault.notes.push_back(cut(note, kAgentFaultBytesMax));
  return fault;
}

Error to_error(const AgentFault& fault) {
  CHECK(!fault.text.empty(), "no fault");
  const auto code = fault.code <= static_cast<uint8_t>(Code::kDeviceLost)
                        ? static_cast<Code>(fault.code)
                        : Code::kInternal;
  Error error(code, fault.text);
  for (const auto& note : fault.notes) (void)std::move(error).note(note);
  return error;
}

}  // namespace primerl
