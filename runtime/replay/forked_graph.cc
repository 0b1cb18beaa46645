#include "runtime/replay/forked_graph.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "graph/base/files.h"
#include "graph/joining.h"
#include "graph/tenant_values.h"
#include "runtime/replay/replay_session.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/trace/cut_file.h"
#include "runtime/trace/read/tenant_uses.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// Training steps of a tenant of the file before the record: those of its checkpoint "step_80".
int64_t begun_steps(const TraceCatalog& catalog, const TenantUse& use) {
  if (!use.is_in_file || use.slot.index() >= catalog.resumed_from.size()) return 0;
  const std::string name = fs::path(catalog.resumed_from[use.slot.index()]).filename().string();
  int64_t step = 0;
  if (name.starts_with("step_"))
    (void)std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return step;
}

/// When the first tenant ended its training step; none: no tenant did.
std::optional<Time> moment_of(const ReplayRecord& record, int64_t step) {
  const Trace& trace = *record.trace;
  std::optional<Time> moment;
  for (const PlanResource& resource : record.plan->resources) {
    if (resource.kind != Learner::kResourceKind) continue;
    for (uint32_t i = 0; i < record.plan->groups.size(); ++i) {
      const auto& owned = record.plan->groups[i].resources;
      const auto index = static_cast<int32_t>(&resource - record.plan->resources.data());
      if (std::ranges::find(owned, index) == owned.end()) continue;
      std::map<const TenantUse*, int64_t> taken;
      visit_training_steps(trace, GroupId(i), 0, [&](TenantSlot slot, uint64_t number) {
        const TenantUse* use = trace.tenants().at(GroupId(i), number, slot);
        if (use == nullptr) return true;
        const auto [count, is_first] = taken.try_emplace(use, 0);
        if (is_first) count->second = begun_steps(trace.catalog(), *use);
        if (++count->second != step) return true;
        const auto at = trace.step(GroupId(i), number);
        if (at && (!moment || at->began < *moment)) moment = at->began;
        return true;
      });
    }
  }
  return moment;
}

/// Whether the tenant had not left at the moment. Groups make the step at slightly different times;
/// the first one counts.
bool is_there(const Trace& trace, const TenantUse& use, Time moment) {
  if (use.joined > moment) return false;
  for (uint32_t i = 0; i < trace.catalog().groups.size(); ++i) {
    const uint64_t left = trace.tenants().left_at(GroupId(i), use);
    const auto step = left == 0 ? std::nullopt : trace.step(GroupId(i), left);
    if (step && step->began <= moment) return false;
  }
  return true;
}

std::string with_saved_values(const GroupState& group, const SavedSlot& slot) {
  const auto found = group.values.find(slot.slot);
  if (found == group.values.end()) return slot.table;
  const auto values = TenantValues::read(found->second);
  return values.ok() ? values->in_table(slot.table) : slot.table;
}

/// The table of a tenant whose join was retired, from a saved state of the run; "": no state has
/// it.
std::string saved_table(const fs::path& folder, const TenantUse& use) {
  for (const fs::path& file : list_cuts(folder)) {
    const auto head = read_cut_head(file);
    const CutSlot wanted{use.slot, use.tenancy, use.name};
    if (!head.ok() || std::ranges::find(head->slots, wanted) == head->slots.end()) continue;
    const auto cut = read_cut(file);
    if (!cut.ok()) continue;
    for (const GroupState& group : cut->cut.groups)
      for (const SavedSlot& slot : group.slots)
        if (slot.slot == use.slot && slot.tenancy == use.tenancy)
          return with_saved_values(group, slot);
  }
  return {};
}

/// The table with the values that were set until the moment. The newest of them are all of them.
std::string with_set_values(const TenantUse& use, Time moment, std::string table) {
  const std::string* newest = nullptr;
  for (const auto& [time, text] : use.values)
    if (time <= moment) newest = &text;
  if (newest == nullptr) return table;
  const auto values = TenantValues::read(*newest);
  return values.ok() ? values->in_table(table) : table;
}

}  // namespace

Result<ForkedGraph> forked_graph(const fs::path& run, int64_t step) {
  ForkedGraph forked;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(run / "graph.resolved.toml"));
  if (text.find("[graph.tenant_limits]") == std::string::npos) return forked;  // none can join
  const auto record = open_record({.run = run.string()});
  if (!record.ok()) return forked;
  const Trace& trace = *record->trace;
  const auto& uses = trace.tenants().all();
  const auto is_there_always = [&](const TenantUse& use) {
    return use.is_in_file && is_there(trace, use, Time::from_nanoseconds(INT64_MAX));
  };
  const auto has_values = [](const TenantUse& use) { return !use.values.empty(); };
  if (std::ranges::all_of(uses, is_there_always) && std::ranges::none_of(uses, has_values))
    return forked;
  std::optional<Time> moment = moment_of(*record, step);
  if (!moment) {
    moment = Time::from_nanoseconds(INT64_MAX);
    forked.notes.push_back(
        fmt::format("no tenant of the record has ended training step {}: the fork has the tenants "
                    "at its end",
                    step));
  }
  const auto of_file = tenant_tables(text);
  std::map<std::string, std::string> tables;
  std::vector<std::string> labels;
  for (const TenantUse& use : uses) {
    if (!is_there(trace, use, *moment)) continue;
    std::string table = use.table;
    if (const auto found = of_file.find(use.name); use.is_in_file && found != of_file.end())
      table = found->second;
    if (table.empty()) table = saved_table(trace.folder(), use);
    if (table.empty())
      return error(Code::kNotFound, "the record of '{}' has no table of tenant '{}' any more",
                   run.string(), use.label())
          .note(
              "its join was retired, and no saved state has it: fork an earlier step, or name "
              "the tenant in a graph file of your own");
    tables[use.name] = with_set_values(use, *moment, std::move(table));
    labels.push_back(use.label());
    if (!use.is_in_file) forked.tenancies[use.name] = use.tenancy;
  }
  if (tables.empty())
    return error(Code::kInvalid, "no tenant was in '{}' at training step {}", run.string(), step)
        .note("fork a step at which one was there");
  forked.notes.push_back(
      fmt::format("the fork has the tenants of that moment: {}", fmt::join(labels, ", ")));
  forked.text = with_tenant_tables(text, tables);
  return forked;
}

}  // namespace primerl
