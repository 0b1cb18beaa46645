/// PauseController: handles a person's `pause` and `unpause`. It sends them to the engines of all
/// processes, collects the answers, and keeps the table of pauses that `ps` shows.
///
/// The engines decide (actors/common/engine_holds.h): they answer whether they paused, and they end
/// a lease by themselves. A request is answered when every engine has answered, at the latest after
/// kAnswerMax. An engine in a long step pauses at the end of that step. A restarted process has a
/// fresh engine, which gets all pauses that are still valid.
///
/// A state machine: no thread, no clock, no file. Its owner (RunMonitor) passes it every request
/// with its time, and every HoldAnswered. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/json.h"
#include "graph/plan.h"
#include "runtime/monitor/status_store.h"
#include "runtime/wire/control_messages.h"

namespace primerl {

class PauseController {
 public:
  static constexpr Duration kAnswerMax = Duration::seconds(20);
  static constexpr size_t kOpenMax = 16;      // requests with missing answers
  static constexpr size_t kHoldsMax = 64;     // in the table
  static constexpr size_t kOwnersMax = 1024;  // owners of requests in this start

  using Send = std::function<void(ProcessId to, Payload message)>;
  using Answer = std::function<void(const std::string& id, const Json& answer)>;

  /// `plan` must stay valid while the desk exists.
  PauseController(const Plan& plan, Send send, Answer answer)
      : plan_(plan), send_(std::move(send)), answer_(std::move(answer)) {}

  /// The request has {"owner", "lease_ns" (0: unpause), "tenant" (absent: all)}. `why_not`: why the
  /// run cannot do it now; "" when it can. The answer has {"obeyed", "unheld" (engines where an
  /// unpausing owner had no pause), "refused", "late", "holders" (owners of pauses after the
  /// request)}. Or it has {"error", "is_bad" (true: no run could do it)}.
  void ask(const std::string& id, const Json& content, const std::string& why_not, Time now);
  void handle(ProcessId from, const HoldAnswered& answered);
  /// A process reports the pauses of its engines. This start did not receive the requests for some
  /// of them: the run was resumed with them, or their owners are actors of the graph.
  void heard(ProcessId from, const std::vector<EngineUse>& engines, Time now);
  /// Answers requests that waited longer than kAnswerMax.
  void tick(Time now);
  /// The groups of the process were made again.
  void process_back(ProcessId process, Time now);
  /// Ends all pauses: the run drains or ends.
  void end(const std::string& why);
  /// Pauses that are still valid, by owner.
  std::vector<HoldPicture> holds(Time now) const;

 private:
  using Holder = std::pair<std::string, TenantSlot>;  // owner, and tenant of the engines; none: all
                                                      // engines
  struct Question {
    std::string id;
    HoldEngines asked;
    Time at;
    std::set<InstanceId> waits_for, obeyed, unheld;  // unheld: the owner had no pause there
    std::vector<std::pair<InstanceId, std::string>> refused;
  };

  std::vector<InstanceId> engines_of(TenantSlot tenant) const;
  void refuse(const std::string& id, const std::string& why, bool is_bad = false);
  std::string why_no_engine(TenantSlot tenant) const;
  void close(const Question& question);
  void note(const Question& question);

  const Plan& plan_;
  const Send send_;
  const Answer answer_;
  uint64_t newest_ = 0;                // number of the newest request
  std::map<uint64_t, Question> open_;  // open requests by number
  std::map<Holder, Time> holds_;       // end time of each pause
  std::set<std::string> owners_;       // owners of requests in this start: for them holds_ is newer
                                       // than reported_
  std::map<ProcessId, std::map<std::string, Time>> reported_;  // end times that the engines report,
                                                               // by owner
};

}  // namespace primerl
