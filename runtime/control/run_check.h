/// RunCheck: checks on its own thread whether a PrepareRun may be accepted.
///
///   names within their limits -> the challenge is in the run folder -> this machine can take part
///
/// The sender of a PrepareRun is not authenticated yet, and the files that it names may be on disks
/// that hang. So the agent's only thread never waits for them. A check that does not end in time is
/// abandoned with an error. Its thread stays until the disk answers, and the number of such threads
/// is bounded. Not thread-safe.
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

/// Checks that the names of a PrepareRun are within their limits (agent_messages.h) and printable.
Status check_names(const PrepareRun& order);

/// Checks that agent and control plane see the same folder, and that the control plane runs as this
/// user. A file in the folder must hold the challenge and be owned by this user. Opens no file that
/// could block, such as a pipe.
Status check_folder(const PrepareRun& order, uint64_t challenge);

class RunCheck {
 public:
  static constexpr Duration kLookMax = Duration::seconds(10);
  static constexpr int kLooksMax = 16;  // checks in progress, including abandoned ones

  struct Machine {
    std::function<Result<std::filesystem::path>()> find_worker;
    std::function<Status(const PrepareRun&)> check_run;  // null: the machine can take part
  };
  /// Number of one agent's checks in progress.
  using Looks = std::shared_ptr<std::atomic<int>>;

  /// kUnavailable: too many earlier checks have not ended.
  static Result<std::unique_ptr<RunCheck>> begin(PrepareRun order, uint64_t challenge,
                                                 Machine machine, const Looks& looks, Time now);
  const PrepareRun& order() const { return order_; }
  /// The worker program, an Error, or nothing while the check runs. kDeadline after kLookMax.
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
