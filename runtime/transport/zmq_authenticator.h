/// ZmqAuthenticator: answers ZeroMQ whether a key may connect (ZAP, RFC 27).
///
/// Without an authenticator CURVE accepts any key. Listens on inproc://zeromq.zap.01 of one
/// context. Used by the I/O thread.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "runtime/transport/keys.h"
#include "runtime/transport/zmq_socket.h"

namespace primerl {

enum class KeyVerdict {
  kLetIn,
  kNotYet,  // no answer yet: a process with this key may be added soon
  kNever,   // refused
};

class ZmqAuthenticator {
 public:
  using Judge = std::function<KeyVerdict(const std::string& key)>;  // Z85; "": no key

  static Result<ZmqAuthenticator> open(zmq::context_t& context);

  /// Answers pending requests without waiting, a limited number per call. Returns the number of
  /// keys that were refused or must wait.
  uint64_t serve(const Judge& judge, Time now);
  zmq::socket_t& socket() { return socket_; }

 private:
  /// A waiting connection. ZeroMQ closes it itself when its handshake takes too long.
  struct Asked {
    std::string asker, request, key;
    Time since;
  };
  explicit ZmqAuthenticator(zmq::socket_t socket) : socket_(std::move(socket)) {}
  void answer(const Asked& asked, KeyVerdict verdict);

  zmq::socket_t socket_;
  std::deque<Asked> waiting_;
};

}  // namespace primerl
