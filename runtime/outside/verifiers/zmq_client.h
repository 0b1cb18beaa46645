/// ZmqClient: DealerSockets over ZeroMQ, and the wait for all of them. One thread uses it.
#pragma once

#include <poll.h>

#include <memory>
#include <span>

#include "graph/base/clock.h"
#include "runtime/outside/verifiers/dealer_sockets.h"

namespace primerl {

class ZmqClient : public DealerSockets {
 public:
  /// Returns when a socket has a message or an event, a descriptor is ready (revents), or `timeout`
  /// has passed.
  virtual void wait(std::span<pollfd> descriptors, Duration timeout) = 0;
};

std::unique_ptr<ZmqClient> make_zmq_client();

}  // namespace primerl
