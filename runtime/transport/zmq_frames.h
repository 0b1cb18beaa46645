/// FrameListener and FrameDialer: whole frames between one listener and its dialers, over ZeroMQ.
/// Used by the control plane and the agents of other machines.
///
/// With keys every connection is encrypted and authenticated (CURVE), and only keys of the list are
/// allowed. Without keys an address beyond loopback is refused. Nothing is delivered twice or out
/// of order. Frames in transit are lost when a connection breaks, so the sender numbers its frames.
/// Not thread-safe: each object is used by one thread.
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
  std::vector<AllowedKey> allowed;  // keys that may connect to a listener
  std::string listener_key;         // the listener key that a dialer expects, Z85; "" without keys
};

class FrameListener {
 public:
  /// `address` is "tcp://host:port"; port 0 chooses a free one. kInvalid: beyond loopback without
  /// keys; kIo: the error of the system, e.g. a port in use.
  static Result<std::unique_ptr<FrameListener>> open(const std::string& address,
                                                     const FrameKeys& keys, size_t frame_bytes_max);
  virtual ~FrameListener() = default;
  /// The address with the actual port.
  virtual const std::string& address() const = 0;
  /// The next frame and the connection on which it arrived; false: no frame now. A message of
  /// several parts is not a frame and is counted as refused.
  virtual bool receive(std::string& from, std::vector<std::byte>& frame) = 0;
  /// False: the connection cannot accept it now, or is closed.
  virtual bool send(const std::string& to, std::span<const std::byte> frame) = 0;
  /// Number of keys that were not allowed and of messages that were not frames.
  virtual uint64_t num_refused() const = 0;
  /// Waits until a frame may have arrived, a descriptor is ready (revents), or `timeout` has
  /// passed.
  virtual void wait(std::span<pollfd> descriptors, Duration timeout) = 0;
};

class FrameDialer {
 public:
  /// Result of the newest try to connect.
  enum class Try {
    kPending,     // no result yet
    kConnected,   // and the peer has the expected key
    kNobody,      // no listener, or it closed before a greeting
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
