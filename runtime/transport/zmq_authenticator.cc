#include "runtime/transport/zmq_authenticator.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace primerl {
namespace {

ZmqMessage message(std::string_view text) {
  ZmqMessage made(text.size());
  std::transform(text.begin(), text.end(), made.bytes().begin(),
                 [](char each) { return static_cast<std::byte>(each); });
  return made;
}

std::string text_of(const ZmqMessage& part) {
  const auto bytes = part.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

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

Result<ZmqAuthenticator> ZmqAuthenticator::open(ZmqContext& context) {
  ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::open(context, ZmqKind::kAuthenticator, {}));
  RETURN_IF_ERROR(socket.bind("inproc://zeromq.zap.01"));
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
  ZmqMessage part;
  for (int i = 0; i < kAskedPerTurn && socket_.receive(part); ++i) {
    // asker, delimiter, version, request id, domain, address, identity, mechanism, credentials ...
    std::vector<std::string> words = {text_of(part)};
    while (part.has_more() && socket_.receive(part)) words.push_back(text_of(part));
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
  std::array<ZmqMessage, 8> parts = {
      message(asked.asker),
      message(""),
      message("1.0"),
      message(asked.request),
      message(status),
      message(text),
      message(verdict == KeyVerdict::kLetIn ? asked.key : std::string()),
      message("")};
  (void)socket_.send(parts);
}

}  // namespace primerl
