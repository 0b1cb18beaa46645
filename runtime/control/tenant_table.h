/// TenantTable: the life cycle of the tenants of a graph with slots (docs/design/hosted.md).
///
///   admitted -> starting -> training <-> paused
///                   |           |          |
///                   +-------> draining <---+      -> ended | failed -> (removed)
///
/// A tenant is admitted when it has a slot and a number. It trains when every process has made the
/// actors of its slot. Its slot is free when every process has drained and then destroyed them. An
/// entry stays, ended or failed, until it is removed.
///
/// A state machine: no thread, no clock, no file. The owner sends the orders that it returns to the
/// processes, and reports their answers. An order is named by its slot and number, so one that is
/// repeated or late changes nothing. json() is its whole state; an owner that saves it only when an
/// order goes out repeats some answers after a restart. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/plan.h"
#include "graph/tenancies.h"

namespace primerl {

enum class TenantState { kAdmitted, kStarting, kTraining, kPaused, kDraining, kEnded, kFailed };
std::string_view to_string(TenantState state);  // "admitted", "starting", ...

/// An order to processes. All processes answer kMake, kDrain and kDestroy; the others have no
/// answer.
struct TenantOrder {
  enum class Kind { kMake, kStart, kPause, kResume, kDrain, kDestroy, kSet };
  Kind kind = Kind::kMake;
  TenantSlot slot;
  uint32_t tenancy = 0;
  friend bool operator==(const TenantOrder&, const TenantOrder&) = default;
};

/// What happens to the files of a tenant that is removed.
enum class RemovedFiles { kKeep, kKeepCheckpoints, kPurge };

/// A tenant of the table.
struct HostedTenant {
  std::string name;
  TenantSlot slot;
  uint32_t tenancy = 0;
  std::string table;   // with all its values, those that were set too; see tenant_tables()
  std::string values;  // all that were ever set (graph/tenant_values.h)
  TenantState state = TenantState::kAdmitted;
  std::string why;                           // a reason to end as failed
  bool is_removed = false;                   // it leaves the table when its slot is free
  RemovedFiles files = RemovedFiles::kKeep;  // of a removed tenant
  bool is_drained = false;                   // while draining: every process has drained
  bool was_paused = false;                   // once: records may say so, and not that it ended
  std::set<ProcessId> unanswered;            // processes without an answer to the newest order
};

class TenantTable {
 public:
  /// Most tenants in the table, those that have ended too.
  static constexpr size_t kTenantsMax = 2048;

  /// The tenants of the plan train.
  explicit TenantTable(const Plan& plan);

  /// Reserves a free slot and a number. kInvalid: the table has the name. kExhausted: no slot is
  /// free, or the table or the numbers are at their limit.
  Result<HostedTenant> admit(const std::string& name, std::string table);
  /// The owner has recorded the admission. Returns kMake.
  Result<TenantOrder> start(std::string_view name);
  /// kInvalid: the tenant does not train, or is not paused.
  Result<TenantOrder> pause(std::string_view name);
  Result<TenantOrder> resume(std::string_view name);
  /// The tenant has this table and these values from now on. Returns kSet. kInvalid: it neither
  /// trains nor is paused.
  Result<TenantOrder> set(std::string_view name, std::string table, std::string values);
  /// The tenant drains, and leaves the table when its slot is free. One that was only admitted, has
  /// ended or has failed leaves at once, without an order. The last call decides about `files`.
  Result<std::optional<TenantOrder>> remove(std::string_view name,
                                            RemovedFiles files = RemovedFiles::kKeep);
  /// Marks a tenant that has ended or failed: it will be removed with these files. False: it still
  /// has its slot, or is unknown.
  bool mark_removed(std::string_view name, RemovedFiles files);

  /// A process has carried out an order. Returns the next one: kStart after the last kMake,
  /// kDestroy after the last kDrain.
  std::optional<TenantOrder> on_answer(ProcessId process, const TenantOrder& order);
  /// The tenant has made its last step. Returns kDrain, once.
  std::optional<TenantOrder> on_finished(TenantSlot slot, uint32_t tenancy);
  /// An actor of the tenant cannot continue, or a process cannot make its actors. Returns kDrain,
  /// once; the first reason is kept.
  std::optional<TenantOrder> on_failed(TenantSlot slot, uint32_t tenancy, const std::string& why);
  /// Another incarnation of the process runs. It has made the actors of the tenants of the plan, or
  /// it has followed its record up to some order. Returns all orders that it needs, in order: it
  /// destroys the plan's tenants that have left, and the last that left each slot, because its
  /// record may end before that; and it makes the actors of the tenants that are there
  /// again. Its earlier answers do not count any more.
  std::vector<TenantOrder> on_restarted(ProcessId process);

  /// All processes are new, so none of them has answered anything. Then on_restarted() says what
  /// each of them needs.
  void all_restarted();

  /// Null for an unknown name. Valid until the next call.
  const HostedTenant* find(std::string_view name) const;
  /// The tenant that has the slot; null: it is free. Valid until the next call.
  const HostedTenant* holder(TenantSlot slot) const;
  /// By name.
  const std::map<std::string, HostedTenant, std::less<>>& tenants() const { return tenants_; }
  size_t num_free_slots() const;

  Json json() const;
  /// Replaces the whole state by that of json(). kCorrupt: it is not a state of this plan.
  Status restore(const Json& json);

 private:
  Result<HostedTenant*> known(std::string_view name, std::string_view verb,
                              std::initializer_list<TenantState> from);
  HostedTenant* in_slot(TenantSlot slot, uint32_t tenancy);
  std::optional<TenantSlot> free_slot() const;
  TenantOrder order(HostedTenant& tenant, TenantOrder::Kind kind);
  std::optional<TenantOrder> drain(HostedTenant& tenant);
  void leave_slot(HostedTenant& tenant);
  void await_all(HostedTenant& tenant) const;

  const size_t num_slots_;
  const size_t num_planned_;  // tenants of the plan: every process makes them when it starts
  const size_t num_processes_;
  std::map<std::string, HostedTenant, std::less<>> tenants_;
  Tenancies tenancies_;
  std::map<TenantSlot, uint32_t> left_;  // the newest use of each slot whose actors were destroyed
};

}  // namespace primerl
