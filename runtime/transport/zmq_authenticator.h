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

  /// Answers what has been asked; never blocks.
  void serve();
  ZmqSocket& socket() { return socket_; }
  uint64_t num_refused() const { return num_refused_; }

 private:
  ZmqAuthenticator(ZmqSocket socket, std::set<std::string> keys)
      : socket_(std::move(socket)), keys_(std::move(keys)) {}

  ZmqSocket socket_;
  std::set<std::string> keys_;
  uint64_t num_refused_ = 0;
};

}  // namespace primerl
