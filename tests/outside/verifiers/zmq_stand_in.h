/// ZmqStandIn: a StandInServer behind a real ROUTER socket, on a thread of its own.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "graph/base/descriptor.h"
#include "tests/outside/verifiers/stand_in_server.h"

namespace primerl {

class ZmqStandIn {
 public:
  explicit ZmqStandIn(VerifiersDialect dialect) : server_(dialect) {
    router_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.bind("tcp://127.0.0.1:*");
    address_ = router_.get(zmq::sockopt::last_endpoint);
    thread_ = std::thread([this] { serve(); });
  }
  ~ZmqStandIn() {
    is_ending_ = true;
    wake();
    thread_.join();
  }
  const std::string& address() const { return address_; }
  /// Calls `change` with the server while it does nothing else.
  void with(const std::function<void(StandInServer&)>& change) {
    const std::lock_guard lock(mutex_);
    change(server_);
  }
  /// The server answers the runs that it kept.
  void finish_runs() {
    is_finishing_ = true;
    wake();
  }
  /// Closes every connection and listens again at the same address.
  void break_connections() {
    is_breaking_ = true;
    wake();
  }

 private:
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
  void send(const std::string& peer, const Frames& frames) {
    try {
      router_.send(zmq::buffer(peer), zmq::send_flags::sndmore);
      for (size_t i = 0; i < frames.size(); ++i)
        router_.send(zmq::buffer(frames[i]),
                     i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    } catch (const zmq::error_t&) {
      // The peer has gone.
    }
  }
  void serve() {
    while (!is_ending_) {
      zmq::pollitem_t items[] = {{router_.handle(), 0, ZMQ_POLLIN, 0},
                                 {nullptr, event_.get(), ZMQ_POLLIN, 0}};
      zmq::poll(items, 2, std::chrono::milliseconds(-1));
      zmq::message_t part;
      uint64_t count = 0;
      [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof count);
      const std::lock_guard lock(mutex_);
      if (is_breaking_.exchange(false)) reopen();
      if (is_finishing_.exchange(false))
        for (const Frames& answer : server_.finish_runs()) send(last_runner_, answer);
      while (router_.recv(part, zmq::recv_flags::dontwait)) {
        const std::string peer = part.to_string();
        Frames request;
        while (part.more()) {
          (void)router_.recv(part);
          request.push_back(part.to_string());
        }
        const size_t num_runs = server_.runs.size();
        const auto answers = server_.handle(request);
        if (server_.runs.size() > num_runs) last_runner_ = peer;
        for (const Frames& answer : answers) send(peer, answer);
      }
    }
  }
  void reopen() {
    router_.close();
    router_ = zmq::socket_t(context_, zmq::socket_type::router);
    router_.set(zmq::sockopt::linger, 0);
    while (true) {
      try {
        router_.bind(address_);
        return;
      } catch (const zmq::error_t&) {
        std::this_thread::yield();  // the old socket closes on a thread of ZeroMQ
      }
    }
  }

  zmq::context_t context_;
  zmq::socket_t router_{context_, zmq::socket_type::router};
  const Descriptor event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::string address_;
  std::mutex mutex_;
  StandInServer server_;
  std::string last_runner_;
  std::atomic<bool> is_ending_{false}, is_finishing_{false}, is_breaking_{false};
  std::thread thread_;
};

}  // namespace primerl
