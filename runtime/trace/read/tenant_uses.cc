#include "runtime/trace/read/tenant_uses.h"

#include <algorithm>
#include <charconv>

#include "graph/tenant.h"

namespace primerl {

std::string TenantUse::label() const {
  return tenancy == 0 ? name : fmt::format("{}~{}", name, tenancy);
}

TenantUses::TenantUses(const TraceCatalog& catalog) : slot_names_(catalog.tenants) {
  for (uint32_t slot = 0; slot < slot_names_.size(); ++slot) {
    // The name of a planned free slot, which no tenant can have.
    if (slot_names_[slot] == fmt::format("slot-{}", slot)) continue;
    TenantUse& use = all_.emplace_back();
    use.slot = TenantSlot(slot);
    use.name = slot_names_[slot];
    use.joined = Time::from_nanoseconds(INT64_MIN);
    use.is_in_file = true;
  }
}

size_t TenantUses::use_of(TenantSlot slot, uint32_t tenancy, const std::string& name, Time joined) {
  const auto found = std::ranges::find_if(
      all_, [&](const TenantUse& use) { return use.slot == slot && use.tenancy == tenancy; });
  if (found != all_.end()) {
    if (!found->is_in_file) found->joined = std::min(found->joined, joined);
    return static_cast<size_t>(found - all_.begin());
  }
  TenantUse& use = all_.emplace_back();
  use.slot = slot;
  use.tenancy = tenancy;
  use.name = name;
  use.joined = joined;
  return all_.size() - 1;
}

void TenantUses::add_mark(GroupId group, TenantSlot slot, Mark mark) {
  auto& marks = marks_[{group, slot}];
  const auto after = std::ranges::upper_bound(marks, mark.step, {}, &Mark::step);
  marks.insert(after, mark);
}

/// Each group has the event; the first one counts. A group that was busy may make the one before it
/// later, which is no newer value.
void TenantUses::add_values(GroupId group, size_t use, Time began, const std::string& text) {
  auto& values = all_[use].values;
  size_t& num_known = num_values_[{group, use}];
  const auto known = std::find_if(values.begin() + static_cast<ptrdiff_t>(num_known), values.end(),
                                  [&](const auto& each) { return each.second == text; });
  if (known != values.end()) {
    num_known = static_cast<size_t>(known - values.begin()) + 1;
    return;
  }
  const bool is_repeated = !values.empty() && values.back().second == text;
  if (!is_repeated) values.emplace_back(began, text);
  num_known = values.size();
}

void TenantUses::add(GroupId group, uint64_t step, Time began, const TenantChange& change) {
  using Kind = TenantChange::Kind;
  // A late or repeated change is a step that does nothing.
  if (const Mark* newest = mark_before(group, step, change.slot)) {
    const uint32_t tenancy = all_[newest->use].tenancy;
    const bool is_repeated =
        newest->kind == MarkKind::kLeft || change.kind == TenantChange::Kind::kJoin;
    if (change.tenancy < tenancy || (change.tenancy == tenancy && is_repeated)) return;
  }
  const size_t use = use_of(change.slot, change.tenancy, change.name, began);
  if (change.kind == Kind::kJoin) {
    all_[use].table = change.table;
    all_[use].begins_at = change.begins_at;
  }
  if (change.kind == Kind::kSet) add_values(group, use, began, change.table);
  const MarkKind kind = change.kind == Kind::kJoin    ? MarkKind::kJoined
                        : change.kind == Kind::kLeave ? MarkKind::kLeft
                                                      : MarkKind::kPresent;
  add_mark(group, change.slot, {step, kind, use});
}

void TenantUses::add(const CutHead& cut) {
  for (const CutSlot& saved : cut.slots) {
    if (saved.slot.index() >= slot_names_.size()) continue;  // it is of another graph
    const size_t use = use_of(saved.slot, saved.tenancy, saved.name, cut.at);
    for (const auto& [group, step] : cut.steps)
      add_mark(GroupId(group), saved.slot, {step, MarkKind::kPresent, use});
  }
}

const std::vector<TenantUses::Mark>* TenantUses::marks_of(GroupId group, TenantSlot slot) const {
  if (marks_.empty()) return nullptr;
  const auto found = marks_.find({group, slot});
  return found == marks_.end() ? nullptr : &found->second;
}

const TenantUses::Mark* TenantUses::mark_before(GroupId group, uint64_t step,
                                                TenantSlot slot) const {
  const auto* marks = marks_of(group, slot);
  if (marks == nullptr) return nullptr;
  const auto after = std::ranges::upper_bound(*marks, step, {}, &Mark::step);
  return after == marks->begin() ? nullptr : &*std::prev(after);
}

const TenantUse* TenantUses::planned(TenantSlot slot) const {
  const TenantUse* use = find(slot, 0);
  return use != nullptr && use->is_in_file ? use : nullptr;
}

const TenantUse* TenantUses::at(GroupId group, uint64_t step, TenantSlot slot) const {
  if (slot.is_none()) return nullptr;
  const auto* marks = marks_of(group, slot);
  if (marks == nullptr) return planned(slot);
  if (const Mark* mark = mark_before(group, step, slot)) {
    const bool is_over = mark->kind == MarkKind::kLeft && mark->step < step;
    return is_over ? nullptr : &all_[mark->use];
  }
  // Before the first mark: the tenant that was there then, if its join is not in the record.
  const Mark& first = marks->front();
  return first.kind == MarkKind::kJoined ? planned(slot) : &all_[first.use];
}

const TenantUse* TenantUses::at(Time time, TenantSlot slot) const {
  const TenantUse* newest = nullptr;
  for (const TenantUse& use : all_)
    if (use.slot == slot && use.joined <= time &&
        (newest == nullptr || newest->joined <= use.joined))
      newest = &use;
  return newest;
}

const TenantUse* TenantUses::find(TenantSlot slot, uint32_t tenancy) const {
  const auto found = std::ranges::find_if(
      all_, [&](const TenantUse& use) { return use.slot == slot && use.tenancy == tenancy; });
  return found == all_.end() ? nullptr : &*found;
}

uint64_t TenantUses::step_of(GroupId group, const TenantUse& use, MarkKind kind) const {
  if (const auto* marks = marks_of(group, use.slot))
    for (const Mark& mark : *marks)
      if (mark.kind == kind && all_[mark.use].tenancy == use.tenancy) return mark.step;
  return 0;
}

uint64_t TenantUses::joined_at(GroupId group, const TenantUse& use) const {
  return step_of(group, use, MarkKind::kJoined);
}

uint64_t TenantUses::left_at(GroupId group, const TenantUse& use) const {
  return step_of(group, use, MarkKind::kLeft);
}

std::string TenantUses::label(GroupId group, uint64_t step, TenantSlot slot) const {
  if (slot.is_none()) return "";
  if (const TenantUse* use = at(group, step, slot)) return use->label();
  return slot.index() < slot_names_.size() ? slot_names_[slot.index()] : "?";
}

std::string TenantUses::label(TenantSlot slot, uint32_t tenancy) const {
  if (slot.is_none()) return "";
  if (const TenantUse* use = find(slot, tenancy)) return use->label();
  return slot.index() < slot_names_.size() ? slot_names_[slot.index()] : "?";
}

Result<std::vector<const TenantUse*>> TenantUses::named(std::string_view text,
                                                        std::string_view where) const {
  std::string_view name = text;
  int64_t number = -1;
  if (const size_t at = text.rfind('~'); at != std::string_view::npos) {
    const char* const end = text.data() + text.size();
    const auto [stop, fault] = std::from_chars(text.data() + at + 1, end, number);
    if (fault == std::errc() && stop == end)
      name = text.substr(0, at);
    else
      number = -1;
  }
  std::vector<const TenantUse*> found;
  std::vector<std::string> labels;
  for (const TenantUse& use : all_) {
    labels.push_back(use.label());
    const bool is_of_slot = !use.is_in_file && slot_names_[use.slot.index()] == text;
    const bool is_named = use.name == name && (number < 0 || number == use.tenancy);
    if (is_named || is_of_slot) found.push_back(&use);
  }
  const bool is_planned = std::ranges::find(slot_names_, text) != slot_names_.end();
  if (found.empty() && !is_planned) return unknown_tenant(text, labels, where);
  return found;
}

}  // namespace primerl
