/// EngineDesk: where a person's `pause` and `unpause` are taken, passed on to the engines of all
/// processes, and answered; and the book of who holds engines, for `ps`.
///
/// The truth is with the engines (actors/common/engine_holds.h): they say whether they obey, and
/// end a lease by themselves. A question is answered when every engine has answered, at the latest
/// after kAnswerMax: an engine in a long step obeys at its end. A process that was started again
/// has a fresh engine, which is told of the holds that still last.
///
/// A state machine: no thread, no clock, no file. Its owner (RunSession) passes it every question
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

class EngineDesk {
 public:
  static constexpr Duration kAnswerMax = Duration::seconds(20);
  static constexpr size_t kOpenMax = 16;      // questions that engines have not all answered
  static constexpr size_t kHoldsMax = 64;     // in the book
  static constexpr size_t kOwnersMax = 1024;  // asked for in this start

  using Send = std::function<void(ProcessId to, Payload message)>;
  using Answer = std::function<void(const std::string& id, const Json& answer)>;

  /// `plan` outlives it.
  EngineDesk(const Plan& plan, Send send, Answer answer)
      : plan_(plan), send_(std::move(send)), answer_(std::move(answer)) {}

  /// {"owner", "lease_ns" (0: lets go), "tenant" (absent: all)}. `why_not`: the run cannot do it
  /// now; "" when it can. The answer: {"obeyed", "unheld" (the owner who lets go held nothing
  /// there), "refused", "late", "holders" (who holds engines then)}, or {"error", "is_bad" (no run
  /// could do it)}.
  void ask(const std::string& id, const Json& content, const std::string& why_not, Time now);
  void handle(ProcessId from, const HoldAnswered& answered);
  /// What the engines of a process say of who holds them: of owners that this start was not asked
  /// for, since the run was taken up with them, or who are actors of the graph.
  void heard(ProcessId from, const std::vector<EngineUse>& engines, Time now);
  /// Answers what has waited too long.
  void tick(Time now);
  /// Its groups were made again.
  void process_back(ProcessId process, Time now);
  /// A drain ends all leases, and so does the end of the run.
  void end(const std::string& why);
  /// Those that last, by owner.
  std::vector<HoldPicture> holds(Time now) const;

 private:
  using Holder = std::pair<std::string, TenantSlot>;  // owner, and whose engines; none: all
  struct Question {
    std::string id;
    HoldEngines asked;
    Time at;
    std::set<InstanceId> waits_for, obeyed, unheld;  // unheld: its owner held nothing there
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
  uint64_t newest_ = 0;                // number of a question
  std::map<uint64_t, Question> open_;  // by number
  std::map<Holder, Time> holds_;       // until when
  std::set<std::string> owners_;       // asked for in this start: holds_ knows better of them
  std::map<ProcessId, std::map<std::string, Time>> reported_;  // by the engines; until when
};

}  // namespace primerl
