/// Checks every step of a demo run and describes each broken rule in words.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/messages/rollout.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {

class DemoJudge {
 public:
  explicit DemoJudge(const DemoCase& demo) : demo_(demo) {}

  /// Called after every step.
  void see_step(const StepRecord& record);
  /// Called for each line of rollouts.jsonl when it is written.
  void see_line(std::string_view line);
  /// Called once, when the run has ended.
  void see_end(const RunOutcome& outcome);

  const std::vector<std::string>& violations() const { return violations_; }
  const std::map<std::string, int>& ends() const { return ends_; }

 private:
  template <class... Args>
  void broken(fmt::format_string<Args...> text, Args&&... args) {
    if (violations_.size() < 20)
      violations_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void see_emission(const Envelope& envelope);
  void see_trained(const Json& line, int64_t step);

  const DemoCase demo_;
  using Request = std::pair<uint64_t, uint32_t>;  // number of the request or group, attempt
  std::map<Request, int> answers_;                // Completions of each GenerateRequest
  std::map<Request, int> verdicts_;               // GroupEndeds of each TrajectoryGroup
  std::set<uint64_t> sessions_;                   // rollouts that requested tokens
  std::set<std::string> rollouts_;                // rollouts that ended
  size_t num_without_session_ = 0;                // those that ended before a request
  std::map<uint64_t, int> ended_of_group_;
  std::map<int64_t, std::set<uint64_t>> groups_of_step_;
  std::map<std::string, int> ends_;
  std::map<std::pair<InstanceId, TenantSlot>, PolicyVersion> applied_;
  std::map<TenantSlot, PolicyVersion> live_, published_;
  std::vector<std::string> violations_;
};

}  // namespace primerl::sim
