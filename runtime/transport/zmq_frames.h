/// FrameListener and FrameDialer: whole frames between one listener and its dialers, over ZeroMQ;
/// used by the control plane and the agents of other machines.
///
/// With keys every connection is encrypted and authenticated (CURVE), and only keys of the list are
/// allowed; without keys an address beyond loopback is refused. Nothing is delivered twice or out
/// of order, but what was in transit when a connection broke is lost: the sender numbers its
/// frames. Not thread-safe: each lives on one thread.
#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "runtime/transport/keys.h"

namespace primerl {

struct FrameKeys {
  std::optional<KeyPair> own;
  std::vector<AllowedKey> allowed;  // who may connect to a listener
  std::string listener_key;         // the listener key that a dialer expects, Z85; "" without keys
};

class FrameListener {
 public:
  /// `address` is "tcp://host:port"; port 0 takes any free one. kInvalid: beyond loopback without
  /// keys; kIo: the error of the system, e.g. a port in use.
  static Result<std::unique_ptr<FrameListener>> open(const std::string& address,
                                                     const FrameKeys& keys, size_t frame_bytes_max);
  virtual ~FrameListener() = default;
  /// With the port that it got.
  virtual const std::string& address() const = 0;
  /// The next frame and the connection on which it came; false: none now. A message of several
  /// parts is not a frame and is counted as refused.
  virtual bool receive(std::string& from, std::vector<std::byte>& frame) = 0;
  /// False: the connection cannot take it now, or is gone.
  virtual bool send(const std::string& to, std::span<const std::byte> frame) = 0;
  /// Keys that were not allowed, and messages that were not frames.
  virtual uint64_t num_refused() const = 0;
  /// Waits until a frame may be here, a descriptor is ready (revents) or `timeout` is over.
  virtual void wait(std::span<pollfd> descriptors, Duration timeout) = 0;
};

class FrameDialer {
 public:
  /// Result of the newest try to connect.
  enum class Try {
    kPending,     // no result yet
    kConnected,   // and the peer holds the expected key
    kNobody,      // nothing listens there, or it closed before a greeting
    kNotAllowed,  // the peer does not allow this key
    kHandshake,   // the handshake failed: other keys than expected, or none
  };
  static Result<std::unique_ptr<FrameDialer>> open(const std::string& address,
                                                   const FrameKeys& keys, size_t frame_bytes_max);
  virtual ~FrameDialer() = default;
  virtual bool receive(std::vector<std::byte>& frame) = 0;
  /// False: not now.
  virtual bool send(std::span<const std::byte> frame) = 0;
  virtual void wait(std::span<pollfd> descriptors, Duration timeout) = 0;
  virtual Try newest_try() const = 0;
};

}  // namespace primerl
