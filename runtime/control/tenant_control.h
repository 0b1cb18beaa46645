/// TenantControl: the tenants of a run that is served. It owns the TenantTable, takes the requests
/// of `primerl-graph tenant`, sends the table's orders to the processes and passes it their answers
/// (docs/design/hosted.md).
///
///   request -> check, table -> tenants.json (synced) -> ChangeTenant, DrainTenant to processes
///   TenantAnswered, TenantFinished -> table -> tenants.json -> the next order
///
/// The file is written before an order goes out. A start of the run that follows a crash reads it,
/// and every process that is ready gets all orders that it needs, those that it has carried out
/// too. An order without an answer is repeated every dead_after. It waits as long as the process
/// lives: a process that hangs sends no heartbeat, and the RunMonitor kills it.
///
/// A tenant has drained when two rounds in a row find it idle in every process, with equal numbers
/// of steps: a message that was under way in one round shows as a step in the next. The second
/// round goes out with the last answer to the first one. While the numbers still change, a round
/// goes out kRoundPause after the answers to the one before.
///
/// A state machine: no thread, no clock. Its owner (RunMonitor) passes it every request and message
/// with its time. Not thread-safe.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/plan.h"
#include "runtime/control/tenant_table.h"
#include "runtime/monitor/status_store.h"
#include "runtime/wire/control_messages.h"

namespace primerl {

/// The table of a served run, in its folder.
std::filesystem::path tenants_file(const std::filesystem::path& run_folder);

/// The tenants in the table of an earlier start, without slots; none if there is no table, or if it
/// is damaged, which TenantControl::open() reports.
std::vector<ServedTenant> hosted_tenants(const std::filesystem::path& run_folder);
/// Their names in files (tenancy_name()).
std::vector<std::string> hosted_names(const std::filesystem::path& run_folder);

/// Those of them that clients train.
std::vector<std::string> hosted_clients(const std::filesystem::path& run_folder);

/// The tenant as the status of the run shows it. Its steps and share are read from its table.
ServedTenant served_tenant(const HostedTenant& tenant);

class TenantControl {
 public:
  static constexpr Duration kRoundPause = Duration::milliseconds(10);

  struct Setup {
    std::filesystem::path run_folder;
    std::function<void(ProcessId to, Payload message)> send;
    std::function<void(const std::string& id, const Json& answer)> answer;
    /// Adds what the run knows of the tenant: its step, reward, shares.
    std::function<void(const HostedTenant& tenant, Json& picture)> describe;
    std::function<void(const std::string& line)> warn;
    FileOps* files = &system_files();
  };
  /// `plan` must stay valid while the object exists.
  TenantControl(const Plan& plan, Setup setup);

  /// Reads the table of an earlier start of the run; without one the tenants of the plan train.
  /// kCorrupt: the file is damaged or of another graph. kIo: it cannot be read or written.
  Status open();

  /// Whether a request is one of `tenant`: it has "tenant_verb".
  static bool is_ask(const Json& content) { return content.find("tenant_verb") != nullptr; }
  /// "tenant_verb" is "add" with "file", an absolute path; "ls"; or "show", "pause", "resume" and
  /// "remove" with "name", "remove" also with "files" ("keep", "keep_checkpoints" or "purge");
  /// "set" with "name" and "values", an object of numbers (graph/tenant_values.h).
  /// `why_not`: why the run changes no tenant now; "" when it does. The answer to "ls" has
  /// "tenants", "slots" and "free"; every other answer has "tenant", as it is after the request.
  /// A request with "number" is about that use of the name alone.
  /// An answer with {"error", "is_bad" (true: no run could do it)} means that nothing changed;
  /// "code" is that of the Error, if it was one.
  /// "findings" has the findings of a tenant's file.
  void ask(const std::string& id, const Json& content, const std::string& why_not, Time now);

  // An Error of these is that of the disk: the run cannot continue.
  Status handle(ProcessId from, const TenantAnswered& answered, Time now);
  /// The tenant has made its last step, or cannot continue for the reason `fault`. Nothing changes
  /// if another use of the slot has it now: a process that follows its record reports old ones too.
  Status on_finished(const TenantFinished& finished, Time now);

  /// The actor groups of a process are made, in its first incarnation of this start or a later one.
  void process_ready(ProcessId process, Time now);
  void process_died(ProcessId process) { ready_.erase(process); }
  bool is_ready(ProcessId process) const { return ready_.contains(process); }
  /// Repeats orders that wait for an answer for longer than dead_after, and begins rounds of drains
  /// that are due.
  void tick(Time now);
  /// The time until the next round is due; at most `most`.
  Duration time_to_next(Duration most, Time now) const;

  const TenantTable& table() const { return table_; }
  /// Whether the table has changed since the last call.
  bool take_changed() { return std::exchange(has_changed_, false); }
  /// The tenant as `ls` shows it, and with its table for `show`.
  Json picture(const HostedTenant& tenant, bool with_table) const;

 private:
  /// The rounds of a tenant that drains.
  struct Drain {
    uint32_t round = 0;
    std::map<ProcessId, uint64_t> steps;  // of this round
    std::optional<uint64_t> last;         // their sum in the round before
    std::optional<Time> next_at;          // the next round begins then
  };
  /// An order that waits for answers.
  struct Waiting {
    TenantOrder order;
    Time since;
  };

  void add(const std::string& id, const Json& content, Time now);
  void change(const std::string& id, const std::string& verb, const Json& content, Time now);
  void set(const std::string& id, const Json& content, Time now);
  std::map<std::string, std::string> present_tables() const;
  void refuse_unknown(const std::string& id, const std::string& name);
  void list(const std::string& id);
  void show(const std::string& id, const std::string& name);
  void refuse(const std::string& id, const std::string& why, bool is_bad);
  void refuse(const std::string& id, const Error& why);
  bool is_of_another(const Json& content, const std::string& name) const;
  Status on_drained(ProcessId from, const TenantAnswered& answered, Time now);
  Status carry_out(const std::optional<TenantOrder>& order, Time now);
  Status save();
  void send(const TenantOrder& order, ProcessId to);
  void send_to_ready(const TenantOrder& order, Time now);
  void begin_round(TenantSlot slot);
  void remove_files(const HostedTenant& tenant);
  Payload message_of(const TenantOrder& order) const;

  const Plan& plan_;
  const Setup setup_;
  TenantTable table_;
  std::set<ProcessId> ready_;
  std::map<TenantSlot, Drain> drains_;
  std::map<TenantSlot, Waiting> waiting_;
  bool has_changed_ = true;
};

}  // namespace primerl
