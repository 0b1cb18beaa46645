/// ZmqAuthenticator: answers ZeroMQ's question whether a key may connect (ZAP, RFC 27).
///
/// Without one CURVE lets any key in. Listens on inproc://zeromq.zap.01 of one context. Lives on
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
  kNotYet,  // waits for its answer: who has the key may be expected in a moment
  kNever,   // told so
};

class ZmqAuthenticator {
 public:
  using Judge = std::function<KeyVerdict(const std::string& key)>;  // Z85; "": no key

  static Result<ZmqAuthenticator> open(ZmqContext& context);

  /// Answers what has been asked, without waiting, some of it when there is much. The number of
  /// those it did not let in (yet).
  uint64_t serve(const Judge& judge, Time now);
  ZmqSocket& socket() { return socket_; }

 private:
  /// A connection that waits; ZeroMQ closes it by itself when its handshake has taken too long.
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
