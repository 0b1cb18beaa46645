/// TenantUses: which tenant had which slot of a recorded run, and when (docs/design/hosted.md). The
/// catalog names the slots as they were planned. A tenant that joined has its name in the event
/// that admitted it. An event is at one position of each group, so a name is found by (group, step,
/// slot).
///
/// Filled while a trace is opened, constant afterwards; any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"
#include "graph/tenant_change.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/cut_file.h"

namespace primerl {

/// One use of a slot, from the event that admitted a tenant to its removal.
struct TenantUse {
  TenantSlot slot;
  uint32_t tenancy = 0;
  std::string name;   // "alice"
  std::string table;  // of the join; "": the tenant is in the graph's file, or its join was retired
  int64_t begins_at = 0;  // of the join: TenantChange
  /// Values that were set (graph/tenant_values.h), in order of time.
  std::vector<std::pair<Time, std::string>> values = {};
  Time joined;  // the first group's event; of a tenant of the file, before every step
  bool is_in_file = false;
  /// "alice", of a later use "alice~2": as in names of files.
  std::string label() const;
};

class TenantUses {
 public:
  TenantUses() = default;
  /// The tenants of the graph's file, each in its slot from the first step on.
  explicit TenantUses(const TraceCatalog& catalog);

  /// A step of `group` that made a change. Steps of a group come in their order. Late and repeated
  /// changes, which do nothing, are passed over.
  void add(GroupId group, uint64_t step, Time began, const TenantChange& change);
  /// A tenant of a cut: it had its slot when the groups of the cut had made these steps.
  void add(const CutHead& cut);

  /// In order of their begin. The tenants of the file are first.
  const std::vector<TenantUse>& all() const { return all_; }
  /// The tenant that had the slot in this step of the group; null: it was free.
  const TenantUse* at(GroupId group, uint64_t step, TenantSlot slot) const;
  /// The same at a time; for facts that belong to no step.
  const TenantUse* at(Time time, TenantSlot slot) const;
  const TenantUse* find(TenantSlot slot, uint32_t tenancy) const;
  /// The step of the event that admitted or removed the tenant in this group; 0: there is none.
  uint64_t joined_at(GroupId group, const TenantUse& use) const;
  uint64_t left_at(GroupId group, const TenantUse& use) const;
  /// The label of at(), or the planned name of a free slot; "" without a slot.
  std::string label(GroupId group, uint64_t step, TenantSlot slot) const;
  std::string label(TenantSlot slot, uint32_t tenancy) const;

  /// The uses that `text` names: "alice" all of that name, "alice~2" one, "alice~0" the first,
  /// "slot-3" all of a planned free slot. kNotFound names all tenants; `where` is for example "this
  /// trace".
  Result<std::vector<const TenantUse*>> named(std::string_view text, std::string_view where) const;

 private:
  enum class MarkKind : uint8_t { kJoined, kPresent, kLeft };
  struct Mark {
    uint64_t step = 0;
    MarkKind kind = MarkKind::kPresent;
    size_t use = 0;  // index in all_
  };
  const std::vector<Mark>* marks_of(GroupId group, TenantSlot slot) const;
  /// The last mark at the step or before it.
  const Mark* mark_before(GroupId group, uint64_t step, TenantSlot slot) const;
  size_t use_of(TenantSlot slot, uint32_t tenancy, const std::string& name, Time joined);
  void add_mark(GroupId group, TenantSlot slot, Mark mark);
  void add_values(GroupId group, size_t use, Time began, const std::string& text);
  uint64_t step_of(GroupId group, const TenantUse& use, MarkKind kind) const;
  const TenantUse* planned(TenantSlot slot) const;

  std::vector<std::string> slot_names_;  // as planned
  std::vector<TenantUse> all_;
  std::map<std::pair<GroupId, TenantSlot>, std::vector<Mark>> marks_;  // by step
  /// How many values of a use a group has made, by group and index in all_.
  std::map<std::pair<GroupId, size_t>, size_t> num_values_;
};

}  // namespace primerl
