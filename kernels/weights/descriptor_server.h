/// Hands open descriptors to other processes of the same user on the same machine, each to whoever
/// knows its name: memory of a device is shared so.
///
/// DescriptorServer owns a thread and a socket without a file, which begin with the first offer and
/// end with it; the kernel ends them, too, when the process dies. It answers one after the other
/// and waits for nobody longer than a second. Thread-safe.
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

/// Of one offer. Plain bytes: it may travel as they are.
struct DescriptorName {
  std::array<char, 6> address{};  // of the socket, in Linux's abstract namespace
  std::array<char, 16> key{};     // drawn by chance: nobody guesses it, and no other offer has it

  friend auto operator<=>(const DescriptorName&, const DescriptorName&) = default;
};

class DescriptorServer {
 public:
  /// Makes the descriptor for one who asks; not called any more once withdraw() has returned.
  using Open = std::function<Result<Descriptor>()>;

  DescriptorServer() = default;
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  /// Until withdraw(). The first may find that the system has no socket or thread.
  Result<DescriptorName> offer(Open open);
  void withdraw(const DescriptorName& name);

 private:
  Status start();
  void serve() const;
  void answer(int client) const;
  Result<Descriptor> opened(const DescriptorName& asked) const;

  mutable std::mutex mutex_;  // of all but the socket once the thread runs
  std::array<char, 6> address_{};
  std::map<DescriptorName, Open> offers_;
  Descriptor socket_;
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;
};

/// The descriptor that another process offers under `name`, or this one. kUnavailable says why
/// there is none: it was withdrawn, its process has ended or is another user's, or does not answer
/// within ten seconds.
Result<Descriptor> receive_descriptor(const DescriptorName& name);

}  // namespace primerl
