/// RawClient: a connection to a server of this machine that sends exactly the bytes of the test.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

#include "tests/base/patience.h"

namespace primerl {

class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    // A server that never answers fails the test instead of stopping it.
    const timeval patience{static_cast<time_t>(kPatience.to_seconds()), 0};
    (void)::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  /// Takes ownership of a socket that is not connected yet.
  explicit RawClient(int socket) : socket_(socket) {}
  int connect(const sockaddr* address, socklen_t size) const {
    return ::connect(socket_, address, size);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { ::close(socket_); }

  RawClient& say(std::string_view text) {
    (void)::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    return *this;
  }
  /// Reads until the server closes.
  std::string hear_all() {
    while (hear_more()) {
    }
    return heard_;
  }
  /// Reads until `text` has arrived; otherwise until the server closes.
  std::string hear_until(std::string_view text) {
    while (heard_.find(text) == std::string::npos && hear_more()) {
    }
    return std::exchange(heard_, {});
  }

 private:
  bool hear_more() {
    char block[4096];
    const ssize_t got = ::recv(socket_, block, sizeof block, 0);
    if (got > 0) heard_.append(block, static_cast<size_t>(got));
    return got > 0;
  }

  const int socket_;
  std::string heard_;
};

}  // namespace primerl
