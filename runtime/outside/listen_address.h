/// ListenAddress: "127.0.0.1:8000" or "[::1]:8000", as a listener's option has it; and a
/// socket that listens there. Plain functions, any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

struct ListenAddress {
  std::string host;  // a numeric address, without brackets
  uint16_t port = 0;
  bool is_loopback = true;
};

/// `localhost` is 127.0.0.1; other names are refused.
Result<ListenAddress> parse_listen_address(const std::string& text);

/// The same as the system has it.
struct BoundAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
/// `host` is a numeric address.
BoundAddress bound_address(const std::string& host, uint16_t port);
/// A socket that listens there and does not wait. kExists: another program listens there.
Result<Descriptor> listening_socket(const std::string& host, uint16_t port);
/// The port of a bound socket; no value if the system does not know it.
std::optional<uint16_t> port_of(int socket);

}  // namespace primerl
