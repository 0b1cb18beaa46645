/// ZmqAuthenticator: answers ZeroMQ's question whether a key may connect (ZAP, RFC 27).
///
/// Without one CURVE lets any key in. Listens on inproc://zeromq.zap.01 of one context. Lives on
/// the I/O thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/transport/keys.h"
#include "runtime/transport/zmq_socket.h"

namespace primerl {

class ZmqAuthenticator {
 public:
  static Result<ZmqAuthenticator> open(ZmqContext& context, const std::vector<AllowedKey>& allowed);

  /// Answers what has been asked, without waiting. The number of those it did not let in.
  uint64_t serve();
  ZmqSocket& socket() { return socket_; }

 private:
  ZmqAuthenticator(ZmqSocket socket, std::set<std::string> keys)
      : socket_(std::move(socket)), keys_(std::move(keys)) {}

  ZmqSocket socket_;
  std::set<std::string> keys_;
};

}  // namespace primerl
