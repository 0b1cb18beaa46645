/// FrameListener and FrameDialer: whole frames between one listener and those who dial it, over
/// ZeroMQ; what the control plane and the agents of other machines speak through.
///
/// With keys every connection is encrypted and authenticated (CURVE), and only keys of the list are
/// let in; an address beyond loopback is refused without. Nothing is delivered twice or out of
/// order, but what was under way when a connection broke is lost: the frames are numbered by who
/// sends them. Not thread-safe: each lives on one thread.
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
  std::string listener_key;         // of whom a dialer expects, Z85; "" without keys
};

class FrameListener {
 public:
  /// `address` is "tcp://host:port", port 0 any free one. kInvalid: beyond loopback without keys;
  /// kIo: the system's word, e.g. a port in use.
  static Result<std::unique_ptr<FrameListener>> open(const std::string& address,
                                                     const FrameKeys& keys, size_t frame_bytes_max);
  virtual ~FrameListener() = default;
  /// With the port it got.
  virtual const std::string& address() const = 0;
  /// The next frame and the connection it came by; false: none now. A message of several parts is
  /// no frame and is counted as refused.
  virtual bool receive(std::string& from, std::vector<std::byte>& frame) = 0;
  /// False: not now, or not any more.
  virtual bool send(const std::string& to, std::span<const std::byte> frame) = 0;
  /// Keys that were not let in, and messages that were no frame.
  virtual uint64_t num_refused() const = 0;
  /// Until a frame may be there, one of the descriptors is ready (revents) or `timeout` is over.
  virtual void wait(std::span<pollfd> descriptors, Duration timeout) = 0;
};

class FrameDialer {
 public:
  /// What the newest try to connect came to.
  enum class Try {
    kPending,     // no word yet
    kConnected,   // and the peer holds the expected key
    kNobody,      // nothing listens there, or it hung up before a greeting
    kNotAllowed,  // the peer does not let this key in
    kHandshake,   // it speaks otherwise: other keys than expected, or none
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
