#include "runtime/transport/zmq_authenticator.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace primerl {
namespace {

/// The Z85 text of a key of 32 bytes; empty for another size.
std::string key_text(const std::string& key) {
  if (key.size() != 32) return {};
  std::array<char, kKeyTextBytes + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(key.data()), key.size());
  return text.data();
}

/// Status and text of the answer.
std::pair<std::string_view, std::string_view> words_of(KeyVerdict verdict) {
  switch (verdict) {
    case KeyVerdict::kLetIn:
      return {"200", "OK"};
    case KeyVerdict::kNotYet:
      return {"300", "no process with this key is expected yet"};
    case KeyVerdict::kNever:
      break;
  }
  return {"400", "this key is not in the list of allowed keys"};
}

constexpr int kAskedPerTurn = 64;
constexpr size_t kWaitingMax = 64;
constexpr Duration kWaitMax = Duration::milliseconds(kHandshakeMilliseconds);

}  // namespace

Result<ZmqAuthenticator> ZmqAuthenticator::open(zmq::context_t& context) {
  ASSIGN_OR_RETURN(zmq::socket_t socket, open_socket(context, ZmqKind::kAuthenticator, {}));
  RETURN_IF_ERROR(bind_socket(socket, "inproc://zeromq.zap.01"));
  return ZmqAuthenticator(std::move(socket));
}

uint64_t ZmqAuthenticator::serve(const Judge& judge, Time now) {
  while (!waiting_.empty() && now - waiting_.front().since >= kWaitMax) waiting_.pop_front();
  std::erase_if(waiting_, [&](const Asked& asked) {
    const KeyVerdict verdict = judge(asked.key);
    if (verdict != KeyVerdict::kNotYet) answer(asked, verdict);
    return verdict != KeyVerdict::kNotYet;
  });
  uint64_t num_refused = 0;
  zmq::message_t part;
  for (int i = 0; i < kAskedPerTurn && receive_part(socket_, part); ++i) {
    // asker, delimiter, version, request id, domain, address, identity, mechanism, credentials ...
    std::vector<std::string> words = {part.to_string()};
    while (part.more() && receive_part(socket_, part)) words.push_back(part.to_string());
    if (words.size() < 4) continue;
    const bool is_curve = words.size() == 9 && words[2] == "1.0" && words[7] == "CURVE";
    Asked asked = {words[0], words[3], is_curve ? key_text(words[8]) : std::string(), now};
    const KeyVerdict verdict = asked.key.empty() ? KeyVerdict::kNever : judge(asked.key);
    if (verdict != KeyVerdict::kLetIn) ++num_refused;
    if (verdict == KeyVerdict::kNotYet && waiting_.size() < kWaitingMax)
      waiting_.push_back(std::move(asked));
    else
      answer(asked, verdict);
  }
  return num_refused;
}

void ZmqAuthenticator::answer(const Asked& asked, KeyVerdict verdict) {
  const auto [status, text] = words_of(verdict);
  std::array<zmq::message_t, 8> parts = {
      zmq::message_t(asked.asker),
      zmq::message_t(),
      zmq::message_t(std::string_view("1.0")),
      zmq::message_t(asked.request),
      zmq::message_t(status),
      zmq::message_t(text),
      zmq::message_t(verdict == KeyVerdict::kLetIn ? asked.key : std::string()),
      zmq::message_t()};
  (void)send_parts(socket_, parts);
}

}  // namespace primerl
