/// FakeSockets: DealerSockets to StandInServers of the same process, for tests with a virtual
/// clock.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "runtime/outside/verifiers/dealer_sockets.h"
#include "tests/outside/verifiers/stand_in_server.h"

namespace primerl {

inline constexpr const char* kAddress = "tcp://127.0.0.1:5000";

class FakeSockets final : public DealerSockets {
 public:
  /// The server listens at the address from now on.
  void start(const std::string& address, StandInServer& server) {
    servers_[address] = &server;
    for (auto& [number, socket] : sockets_)
      if (socket.address == address) connect(socket);
  }
  /// The server ends as by SIGKILL: what it has not answered is lost.
  void kill(const std::string& address) {
    servers_.erase(address);
    for (auto& [number, socket] : sockets_) {
      if (socket.address != address || !socket.is_connected) continue;
      socket.is_connected = false;
      socket.events.push_back(Event::kDisconnected);
    }
  }
  /// The server answers the runs that it kept.
  void finish_runs(const std::string& address) {
    for (Frames& answer : servers_.at(address)->finish_runs()) {
      const auto asked = asked_by_.find(answer.front());
      if (asked == asked_by_.end() || !sockets_.contains(asked->second)) continue;
      sockets_.at(asked->second).inbox.push_back(std::move(answer));
    }
  }
  /// A message that the server sends on its own, to the socket that it would answer on.
  void push(const std::string& address, const Frames& frames) {
    for (auto& [number, socket] : sockets_)
      if (socket.address == address && socket.is_connected) {
        socket.inbox.push_back(frames);
        return;
      }
  }
  size_t num_open() const { return sockets_.size(); }

  Result<uint64_t> open(const std::string& address, int64_t) override {
    Socket& socket = sockets_[++num_opened_];
    socket.address = address;
    if (servers_.contains(address)) connect(socket);
    return num_opened_;
  }
  void close(uint64_t socket) override { sockets_.erase(socket); }
  bool send(uint64_t number, const std::vector<std::string>& frames) override {
    Socket& socket = sockets_.at(number);
    if (!socket.is_connected) return false;
    StandInServer& server = *servers_.at(socket.address);
    asked_by_[frames.front()] = number;
    for (Frames& answer : server.handle(frames)) socket.inbox.push_back(std::move(answer));
    if (server.is_killed) kill(std::string(socket.address));
    return true;
  }
  std::optional<std::vector<std::string>> receive(uint64_t number) override {
    return front_of(sockets_.at(number).inbox);
  }
  std::optional<Event> next_event(uint64_t number) override {
    return front_of(sockets_.at(number).events);
  }

 private:
  struct Socket {
    std::string address;
    bool is_connected = false;
    std::deque<Frames> inbox;
    std::deque<Event> events;
  };
  static void connect(Socket& socket) {
    if (socket.is_connected) return;
    socket.is_connected = true;
    socket.events.push_back(Event::kConnected);
  }
  template <class T>
  static std::optional<T> front_of(std::deque<T>& queue) {
    if (queue.empty()) return std::nullopt;
    T first = std::move(queue.front());
    queue.pop_front();
    return first;
  }

  std::map<std::string, StandInServer*> servers_;
  std::map<uint64_t, Socket> sockets_;
  std::map<std::string, uint64_t> asked_by_;  // the socket of a request id
  uint64_t num_opened_ = 0;
};

}  // namespace primerl
