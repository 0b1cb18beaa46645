/// ZmqAuthenticator: tells ZeroMQ whether a key may connect (ZAP, RFC 27).
///
/// Without one CURVE accepts any key. Listens on inproc://zeromq.zap.01 of one context. Lives on
/// the I/O thread.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "runtime/transport/keys.h"
#include "runtime/transport/zmq_socket.h"

namespace primerl {

enum class KeyVerdict {
  kLetIn,
  kNotYet,  // no answer yet: a process with this key may be added in a moment
  kNever,   // refused
};

class ZmqAuthenticator {
 public:
  using Judge = std::function<KeyVerdict(const std::string& key)>;  // Z85; "": no key

  static Result<ZmqAuthenticator> open(ZmqContext& context);

  /// Answers pending questions without waiting; a limited number per call. Returns the number of
  /// keys that it refused or left waiting.
  uint64_t serve(const Judge& judge, Time now);
  ZmqSocket& socket() { return socket_; }

 private:
  /// A connection that waits; ZeroMQ closes it itself when its handshake takes too long.
  struct Asked {
    std::string asker, request, key;
    Time since;
  };
  explicit ZmqAuthenticator(ZmqSocket socket) : socket_(std::move(socket)) {}
  void answer(const Asked& asked, KeyVerdict verdict);

  ZmqSocket socket_;
  std::deque<Asked> waiting_;
};

}  // namespace primerl
