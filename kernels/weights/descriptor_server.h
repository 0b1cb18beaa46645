/// Gives open descriptors to other processes of the same user on the same machine, each to a
/// process that knows its name. This is how device memory is shared.
///
/// DescriptorServer owns a thread and a socket without a file. Both start with the first offer and
/// end with the object; the kernel also closes them when the process dies. It answers one client
/// after the other and waits at most a second for each request. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

/// The name of one offer. Plain bytes that can be sent as they are.
struct DescriptorName {
  std::array<char, 6> address{};  // of the socket, in Linux's abstract namespace
  std::array<char, 16> key{};     // random: it cannot be guessed, and is unique to the offer

  friend auto operator<=>(const DescriptorName&, const DescriptorName&) = default;
};

class DescriptorServer {
 public:
  /// Makes the descriptor for a client; not called after withdraw() has returned.
  using Open = std::function<Result<Descriptor>()>;

  DescriptorServer() = default;
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  /// Offers a descriptor until withdraw(). The first offer may fail if the system has no socket or
  /// thread.
  Result<DescriptorName> offer(Open open);
  void withdraw(const DescriptorName& name);

 private:
  Status start();
  void serve() const;
  void answer(int client) const;
  Result<Descriptor> opened(const DescriptorName& asked) const;

  mutable std::mutex mutex_;  // guards everything but the socket once the thread runs
  std::array<char, 6> address_{};
  std::map<DescriptorName, Open> offers_;
  Descriptor socket_;
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;
};

/// The descriptor that another process, or this one, offers under `name`. kUnavailable says why
/// there is none: it was withdrawn, its process has ended or belongs to another user, or it did not
/// answer within ten seconds.
Result<Descriptor> receive_descriptor(const DescriptorName& name);

}  // namespace primerl
