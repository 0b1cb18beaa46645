// The peer of the gateway: an HTTP server of one thread that does nothing but answer. It prints its
// port and runs until it is killed.
//
//   gateway_echo
//
// Bound: epoll_wait, recv and send for each request, about 5 us. The gateway also sends the
// request through router and engine, and records it.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "graph/base/descriptor.h"

namespace primerl {
namespace {

/// A body as long as that of a completion of four tokens.
std::string reply_text() {
  const std::string body =
      fmt::format(R"({{"request_id":"echo","padding":"{}"}})", std::string(560, 'x'));
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

/// Whether `heard` has a whole request; it is removed.
bool remove_request(std::string& heard) {
  const size_t head_end = heard.find("\r\n\r\n");
  if (head_end == std::string::npos) return false;
  const size_t length_at = heard.find("Content-Length: ");
  const size_t length =
      length_at < head_end ? std::strtoull(heard.c_str() + length_at + 16, nullptr, 10) : 0;
  if (heard.size() < head_end + 4 + length) return false;
  heard.erase(0, head_end + 4 + length);
  return true;
}

class Echo {
 public:
  bool listen() {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), any, size) != 0 || ::listen(listener_.get(), 4096) != 0 ||
        ::getsockname(listener_.get(), any, &size) != 0)
      return false;
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    watch(listener_.get());
    fmt::print("{}\n", ntohs(address.sin_port));
    std::fflush(stdout);
    return true;
  }

  void run() {
    std::array<epoll_event, 256> events;
    while (true) {
      const int count =
          ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const int socket = events[static_cast<size_t>(i)].data.fd;
        if (socket == listener_.get())
          accept_all();
        else
          answer(socket);
      }
    }
  }

 private:
  struct Connection {
    Descriptor socket;
    std::string heard;
  };

  void watch(int socket) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = socket;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  }
  void accept_all() {
    while (true) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) return;
      const int yes = 1;
      (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      watch(socket.get());
      const int number = socket.get();
      connections_[number].socket = std::move(socket);
    }
  }
  void answer(int socket) {
    Connection& connection = connections_.at(socket);
    std::array<char, 16384> block;
    const ssize_t got = ::recv(socket, block.data(), block.size(), 0);
    if (got <= 0) {
      connections_.erase(socket);
      return;
    }
    connection.heard.append(block.data(), static_cast<size_t>(got));
    while (remove_request(connection.heard))
      (void)::send(socket, reply_.data(), reply_.size(), MSG_NOSIGNAL);
  }

  const std::string reply_ = reply_text();
  Descriptor listener_, epoll_;
  std::map<int, Connection> connections_;
};

}  // namespace
}  // namespace primerl

int main() {
  primerl::Echo echo;
  if (!echo.listen()) return 1;
  echo.run();
}
