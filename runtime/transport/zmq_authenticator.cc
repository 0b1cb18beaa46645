#include "runtime/transport/zmq_authenticator.h"

#include <zmq.h>

#include <algorithm>
#include <array>

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

/// The Z85 text of a key of 32 bytes; empty when it is none.
std::string key_text(const std::string& key) {
  if (key.size() != 32) return {};
  std::array<char, kKeyTextBytes + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(key.data()), key.size());
  return text.data();
}

}  // namespace

Result<ZmqAuthenticator> ZmqAuthenticator::open(ZmqContext& context,
                                                const std::vector<AllowedKey>& allowed) {
  ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::open(context, ZmqKind::kAuthenticator, {}));
  RETURN_IF_ERROR(socket.bind("inproc://zeromq.zap.01"));
  std::set<std::string> keys;
  for (const AllowedKey& entry : allowed) keys.insert(entry.public_key);
  return ZmqAuthenticator(std::move(socket), std::move(keys));
}

uint64_t ZmqAuthenticator::serve() {
  uint64_t num_refused = 0;
  ZmqMessage part;
  while (socket_.receive(part)) {
    // version, request id, domain, address, identity, mechanism, credentials ...
    std::vector<std::string> asked = {text_of(part)};
    while (part.has_more() && socket_.receive(part)) asked.push_back(text_of(part));
    const bool is_curve = asked.size() == 7 && asked[0] == "1.0" && asked[5] == "CURVE";
    const std::string key = is_curve ? key_text(asked[6]) : std::string();
    const bool is_allowed = keys_.contains(key);
    if (!is_allowed) ++num_refused;
    std::array<ZmqMessage, 6> answer = {
        message("1.0"),
        message(asked.size() > 1 ? asked[1] : std::string()),
        message(is_allowed ? "200" : "400"),
        message(is_allowed ? "OK" : "this key is not in the list of allowed keys"),
        message(is_allowed ? key : std::string()),
        message("")};
    (void)socket_.send(answer);
  }
  return num_refused;
}

}  // namespace primerl
