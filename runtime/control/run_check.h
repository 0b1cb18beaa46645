/// RunCheck: whether a PrepareRun may be obeyed, found out on a thread of its own.
///
///   names within their limits -> the challenge is in the run folder -> this machine can take part
///
/// Whoever sends one has proved nothing yet, and the files it names are on disks that may hang: so
/// the agent's only thread never waits for them. A look that does not end is given up and told so;
/// its thread stays until the disk lets it go, and only so many may. Not thread-safe.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "runtime/wire/agent_messages.h"

namespace primerl {

/// Names of a PrepareRun that are within their limits (agent_messages.h) and nothing but text.
Status check_names(const PrepareRun& order);

/// The folder is the one that the control plane has, and it is run by this user: a file of the
/// folder holds the challenge, and is this user's. Opens nothing that could wait for somebody.
Status check_folder(const PrepareRun& order, uint64_t challenge);

class RunCheck {
 public:
  static constexpr Duration kLookMax = Duration::seconds(10);
  static constexpr int kLooksMax = 16;  // under way at a time, those given up included

  struct Machine {
    std::function<Result<std::filesystem::path>()> find_worker;
    std::function<Status(const PrepareRun&)> check_run;  // null: it can take part
  };
  /// Of one agent: how many looks are under way.
  using Looks = std::shared_ptr<std::atomic<int>>;

  /// kUnavailable: too many looks do not end.
  static Result<std::unique_ptr<RunCheck>> begin(PrepareRun order, uint64_t challenge,
                                                 Machine machine, const Looks& looks, Time now);
  const PrepareRun& order() const { return order_; }
  /// The worker program, why not, or nothing yet. kDeadline after kLookMax.
  std::optional<Result<std::filesystem::path>> poll(Time now) const;

 private:
  struct Look;
  RunCheck(PrepareRun order, std::shared_ptr<Look> look, Time give_up)
      : order_(std::move(order)), look_(std::move(look)), give_up_(give_up) {}

  const PrepareRun order_;
  const std::shared_ptr<Look> look_;
  const Time give_up_;
};

}  // namespace primerl
