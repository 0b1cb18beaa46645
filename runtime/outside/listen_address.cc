#include "runtime/outside/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace primerl {

Result<ListenAddress> parse_listen_address(const std::string& text) {
  const auto wrong = [&text](std::string_view reason) {
    return error(Code::kInvalid, "'listen' is '{}': {}", text, reason)
        .note("write an address and a port, for example 127.0.0.1:8000 or [::1]:8000");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("it has no port");
  ListenAddress address;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (fault != std::errc() || stop != end) return wrong("the port is not a number up to 65535");
  address.host = text.substr(0, colon);
  std::array<unsigned char, 16> bytes{};
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (::inet_pton(AF_INET, address.host.c_str(), bytes.data()) == 1) {
    address.is_loopback = bytes[0] == 127;
    return address;
  }
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
    if (::inet_pton(AF_INET6, address.host.c_str(), bytes.data()) == 1) {
      in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
      address.is_loopback = std::equal(bytes.begin(), bytes.end(), loopback.s6_addr);
      return address;
    }
  }
  return wrong("the address is not a number such as 127.0.0.1 or [::1]");
}

BoundAddress bound_address(const std::string& host, uint16_t port) {
  BoundAddress address;
  sockaddr_in ipv4{};
  if (::inet_pton(AF_INET, host.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&address.storage, &ipv4, sizeof ipv4);
    address.size = sizeof ipv4;
    return address;
  }
  sockaddr_in6 ipv6{};
  CHECK(::inet_pton(AF_INET6, host.c_str(), &ipv6.sin6_addr) == 1, "an address was not checked");
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  std::memcpy(&address.storage, &ipv6, sizeof ipv6);
  address.size = sizeof ipv6;
  return address;
}

Result<Descriptor> listening_socket(const std::string& host, uint16_t port) {
  const BoundAddress address = bound_address(host, port);
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  const auto fault = [&] {
    const Code code = errno == EADDRINUSE ? Code::kExists : Code::kUnavailable;
    return error(code, "cannot listen on {}:{}: {}", host, port, std::strerror(errno));
  };
  if (socket.get() < 0) return fault();
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.family() == AF_INET6)
    (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  if (::bind(socket.get(), address.get(), address.size) != 0) return fault();
  if (::listen(socket.get(), SOMAXCONN) != 0) return fault();
  return socket;
}

std::optional<uint16_t> port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return std::nullopt;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

}  // namespace primerl
