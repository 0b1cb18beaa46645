#include "runtime/control/tenant_table.h"

#include <algorithm>
#include <array>

#include "graph/joining.h"

namespace primerl {
namespace {

using OrderKind = TenantOrder::Kind;

constexpr std::array<std::string_view, 7> kStates = {"admitted", "starting", "training", "paused",
                                                     "draining", "ended",    "failed"};
constexpr std::array<std::string_view, 3> kFiles = {"keep", "keep_checkpoints", "purge"};

bool has_slot(TenantState state) {
  return state != TenantState::kEnded && state != TenantState::kFailed;
}

/// The order that a tenant with unanswered processes waits for.
OrderKind awaited(const HostedTenant& tenant) {
  if (tenant.state != TenantState::kDraining) return OrderKind::kMake;
  return tenant.is_drained ? OrderKind::kDestroy : OrderKind::kDrain;
}

Json json_of(const HostedTenant& tenant) {
  std::vector<uint32_t> unanswered;
  for (const ProcessId process : tenant.unanswered) unanswered.push_back(process.value);
  return Json::object()
      .set("name", tenant.name)
      .set("slot", tenant.slot.value)
      .set("number", tenant.tenancy)
      .set("state", to_string(tenant.state))
      .set("why", tenant.why)
      .set("is_removed", tenant.is_removed)
      .set("files", kFiles[static_cast<size_t>(tenant.files)])
      .set("is_drained", tenant.is_drained)
      .set("was_paused", tenant.was_paused)
      .set("unanswered", Json::list(unanswered))
      .set("values", tenant.values)
      .set("table", tenant.table);
}

Error corrupt(std::string_view what) {
  return error(Code::kCorrupt, "the table of tenants is of another graph, or damaged: {}", what);
}

Result<HostedTenant> read_tenant(const Json& json, size_t num_slots, size_t num_processes) {
  HostedTenant tenant;
  ASSIGN_OR_RETURN(tenant.name, json.get_string("name"));
  ASSIGN_OR_RETURN(const int64_t slot, json.get_int("slot"));
  ASSIGN_OR_RETURN(const int64_t number, json.get_int("number"));
  ASSIGN_OR_RETURN(const std::string state, json.get_string("state"));
  ASSIGN_OR_RETURN(tenant.why, json.get_string("why"));
  ASSIGN_OR_RETURN(tenant.is_removed, json.get_bool("is_removed"));
  ASSIGN_OR_RETURN(const std::string files, json.get_string("files"));
  ASSIGN_OR_RETURN(tenant.is_drained, json.get_bool("is_drained"));
  ASSIGN_OR_RETURN(tenant.was_paused, json.get_bool("was_paused"));
  ASSIGN_OR_RETURN(tenant.table, json.get_string("table"));
  // A table of an earlier program has none.
  if (json.find("values") != nullptr) {
    ASSIGN_OR_RETURN(tenant.values, json.get_string("values"));
  }
  const auto known = std::ranges::find(kStates, state);
  if (known == kStates.end()) return corrupt("a state is unknown");
  if (slot < 0 || std::cmp_greater_equal(slot, num_slots)) return corrupt("a slot is unknown");
  if (number < 0 || number > kTenancyMax) return corrupt("a number is too large");
  tenant.state = static_cast<TenantState>(known - kStates.begin());
  const auto kept = std::ranges::find(kFiles, files);
  if (kept == kFiles.end()) return corrupt("what happens to files is unknown");
  tenant.files = static_cast<RemovedFiles>(kept - kFiles.begin());
  tenant.slot = TenantSlot(static_cast<uint32_t>(slot));
  tenant.tenancy = static_cast<uint32_t>(number);
  const Json* unanswered = json.find("unanswered");
  if (unanswered == nullptr || !unanswered->is_array()) return corrupt("'unanswered' is no list");
  for (const Json& process : unanswered->as_array()) {
    if (!process.is_integer() || process.as_int() < 0 ||
        std::cmp_greater_equal(process.as_int(), num_processes))
      return corrupt("a process is unknown");
    tenant.unanswered.insert(ProcessId(static_cast<uint32_t>(process.as_int())));
  }
  return tenant;
}

}  // namespace

std::string_view to_string(TenantState state) { return kStates[static_cast<size_t>(state)]; }

TenantTable::TenantTable(const Plan& plan)
    : num_slots_(plan.num_slots()),
      num_planned_(plan.tenants.size()),
      num_processes_(plan.processes.size()) {
  auto tables = tenant_tables(plan.resolved_toml);
  for (const Tenant& planned : plan.tenants) {
    HostedTenant tenant;
    tenant.name = planned.name;
    tenant.slot = planned.slot;
    tenant.tenancy = tenancies_.begin(planned.slot, planned.name).value();
    tenant.table = std::move(tables[planned.name]);
    tenant.state = TenantState::kTraining;
    tenants_.emplace(planned.name, std::move(tenant));
  }
}

std::optional<TenantSlot> TenantTable::free_slot() const {
  std::vector<bool> is_used(num_slots_);
  for (const auto& [name, tenant] : tenants_)
    if (has_slot(tenant.state)) is_used[tenant.slot.index()] = true;
  const auto found = std::ranges::find(is_used, false);
  if (found == is_used.end()) return std::nullopt;
  return TenantSlot(static_cast<uint32_t>(found - is_used.begin()));
}

size_t TenantTable::num_free_slots() const {
  return num_slots_ - static_cast<size_t>(std::ranges::count_if(
                          tenants_, [](const auto& each) { return has_slot(each.second.state); }));
}

Result<HostedTenant> TenantTable::admit(const std::string& name, std::string table) {
  if (const HostedTenant* there = find(name); there != nullptr) {
    auto refusal =
        error(Code::kInvalid, "tenant '{}' is there already: {}", name, to_string(there->state));
    if (!has_slot(there->state))
      return std::move(refusal).note("remove it first, or choose a name");
    return refusal;
  }
  const auto slot = free_slot();
  if (!slot)
    return error(Code::kExhausted, "tenants have all {} slots of the graph", num_slots_)
        .note("wait until one has ended, or remove one");
  if (tenants_.size() >= kTenantsMax)
    return error(Code::kExhausted, "{} tenants are kept, most of which have ended", kTenantsMax)
        .note("remove some that have ended");
  HostedTenant tenant;
  ASSIGN_OR_RETURN(tenant.tenancy, tenancies_.begin(*slot, name));
  tenant.name = name;
  tenant.slot = *slot;
  tenant.table = std::move(table);
  return tenants_.emplace(name, std::move(tenant)).first->second;
}

const HostedTenant* TenantTable::find(std::string_view name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

const HostedTenant* TenantTable::holder(TenantSlot slot) const {
  const auto found = std::ranges::find_if(tenants_, [&](const auto& each) {
    return each.second.slot == slot && has_slot(each.second.state);
  });
  return found == tenants_.end() ? nullptr : &found->second;
}

Result<HostedTenant*> TenantTable::known(std::string_view name, std::string_view verb,
                                         std::initializer_list<TenantState> from) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) {
    std::vector<std::string> names;
    for (const auto& [each, tenant] : tenants_) names.push_back(each);
    return unknown_tenant(name, names, "this run");
  }
  HostedTenant& tenant = found->second;
  if (std::ranges::find(from, tenant.state) == from.end())
    return error(Code::kInvalid, "tenant '{}' cannot be {}: it is {}", name, verb,
                 to_string(tenant.state));
  return &tenant;
}

HostedTenant* TenantTable::in_slot(TenantSlot slot, uint32_t tenancy) {
  const auto found = std::ranges::find_if(tenants_, [&](const auto& each) {
    const HostedTenant& tenant = each.second;
    return tenant.slot == slot && tenant.tenancy == tenancy && has_slot(tenant.state);
  });
  return found == tenants_.end() ? nullptr : &found->second;
}

void TenantTable::await_all(HostedTenant& tenant) const {
  for (uint32_t process = 0; process < num_processes_; ++process)
    tenant.unanswered.insert(ProcessId(process));
}

TenantOrder TenantTable::order(HostedTenant& tenant, TenantOrder::Kind kind) {
  tenant.unanswered.clear();
  if (kind == OrderKind::kMake || kind == OrderKind::kDrain || kind == OrderKind::kDestroy)
    await_all(tenant);
  return {kind, tenant.slot, tenant.tenancy};
}

Result<TenantOrder> TenantTable::start(std::string_view name) {
  ASSIGN_OR_RETURN(HostedTenant * tenant, known(name, "started", {TenantState::kAdmitted}));
  tenant->state = TenantState::kStarting;
  return order(*tenant, OrderKind::kMake);
}

Result<TenantOrder> TenantTable::pause(std::string_view name) {
  ASSIGN_OR_RETURN(HostedTenant * tenant, known(name, "paused", {TenantState::kTraining}));
  tenant->state = TenantState::kPaused;
  tenant->was_paused = true;
  return order(*tenant, OrderKind::kPause);
}

Result<TenantOrder> TenantTable::resume(std::string_view name) {
  ASSIGN_OR_RETURN(HostedTenant * tenant, known(name, "resumed", {TenantState::kPaused}));
  tenant->state = TenantState::kTraining;
  return order(*tenant, OrderKind::kResume);
}

Result<TenantOrder> TenantTable::set(std::string_view name, std::string table, std::string values) {
  ASSIGN_OR_RETURN(HostedTenant * tenant,
                   known(name, "set", {TenantState::kTraining, TenantState::kPaused}));
  tenant->table = std::move(table);
  tenant->values = std::move(values);
  return order(*tenant, OrderKind::kSet);
}

Result<std::optional<TenantOrder>> TenantTable::remove(std::string_view name, RemovedFiles files) {
  using S = TenantState;
  ASSIGN_OR_RETURN(HostedTenant * tenant, known(name, "removed",
                                                {S::kAdmitted, S::kStarting, S::kTraining,
                                                 S::kPaused, S::kDraining, S::kEnded, S::kFailed}));
  tenant->is_removed = true;
  tenant->files = files;
  if (tenant->state != S::kAdmitted && has_slot(tenant->state)) return drain(*tenant);
  tenants_.erase(tenants_.find(name));
  return std::optional<TenantOrder>();
}

bool TenantTable::mark_removed(std::string_view name, RemovedFiles files) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end() || has_slot(found->second.state)) return false;
  found->second.is_removed = true;
  found->second.files = files;
  return true;
}

std::optional<TenantOrder> TenantTable::drain(HostedTenant& tenant) {
  if (tenant.state == TenantState::kDraining) return std::nullopt;
  tenant.state = TenantState::kDraining;
  return order(tenant, OrderKind::kDrain);
}

std::optional<TenantOrder> TenantTable::on_answer(ProcessId process, const TenantOrder& answered) {
  HostedTenant* const tenant = in_slot(answered.slot, answered.tenancy);
  if (tenant == nullptr || tenant->unanswered.empty() || awaited(*tenant) != answered.kind)
    return std::nullopt;
  if (tenant->unanswered.erase(process) == 0 || !tenant->unanswered.empty()) return std::nullopt;
  if (answered.kind == OrderKind::kMake) {
    tenant->state = TenantState::kTraining;
    return order(*tenant, OrderKind::kStart);
  }
  if (answered.kind == OrderKind::kDrain) {
    tenant->is_drained = true;
    return order(*tenant, OrderKind::kDestroy);
  }
  leave_slot(*tenant);
  return std::nullopt;
}

void TenantTable::leave_slot(HostedTenant& tenant) {
  tenant.state = tenant.why.empty() ? TenantState::kEnded : TenantState::kFailed;
  left_[tenant.slot] = tenant.tenancy;
  if (tenant.is_removed) tenants_.erase(tenants_.find(tenant.name));
}

std::optional<TenantOrder> TenantTable::on_finished(TenantSlot slot, uint32_t tenancy) {
  HostedTenant* const tenant = in_slot(slot, tenancy);
  return tenant == nullptr ? std::nullopt : drain(*tenant);
}

std::optional<TenantOrder> TenantTable::on_failed(TenantSlot slot, uint32_t tenancy,
                                                  const std::string& why) {
  HostedTenant* const tenant = in_slot(slot, tenancy);
  if (tenant == nullptr) return std::nullopt;
  if (tenant->why.empty()) tenant->why = why;
  return drain(*tenant);
}

void TenantTable::all_restarted() {
  for (auto& [name, tenant] : tenants_) {
    if (tenant.state != TenantState::kStarting && tenant.state != TenantState::kDraining) continue;
    tenant.is_drained = false;  // its actors may have been made again
    await_all(tenant);
  }
}

std::vector<TenantOrder> TenantTable::on_restarted(ProcessId process) {
  std::vector<TenantOrder> orders;
  // First the slots become free, because a later tenant may have one of them.
  for (uint32_t i = 0; i < num_slots_; ++i) {
    const TenantSlot slot(i);
    const HostedTenant* there = holder(slot);
    const bool has_planned_left = i < num_planned_ && (there == nullptr || there->tenancy != 0);
    if (has_planned_left) orders.push_back({OrderKind::kDestroy, slot, 0});
    const auto left = left_.find(slot);
    if (left != left_.end() && (left->second != 0 || !has_planned_left))
      orders.push_back({OrderKind::kDestroy, slot, left->second});
  }
  for (auto& [name, tenant] : tenants_) {
    const TenantState state = tenant.state;
    if (state == TenantState::kAdmitted || !has_slot(state)) continue;
    const auto add = [&, slot = tenant.slot, tenancy = tenant.tenancy](OrderKind kind) {
      orders.push_back({kind, slot, tenancy});
    };
    if (state == TenantState::kStarting || state == TenantState::kDraining)
      tenant.unanswered.insert(process);
    // A draining tenant is made too: other processes may still wait for answers of its actors.
    const bool is_planned = tenant.slot.index() < num_planned_ && tenant.tenancy == 0;
    if (!is_planned && !tenant.is_drained) add(OrderKind::kMake);
    if (!is_planned && (state == TenantState::kTraining || state == TenantState::kPaused))
      add(OrderKind::kStart);
    if (state == TenantState::kPaused) add(OrderKind::kPause);
    // The end of its pause may be in the table and not in the record that the process followed.
    if (state == TenantState::kTraining && tenant.was_paused) add(OrderKind::kResume);
    if (!tenant.values.empty() && !tenant.is_drained) add(OrderKind::kSet);
    if (state == TenantState::kDraining) add(awaited(tenant));
  }
  return orders;
}

Json TenantTable::json() const {
  Json tenants = Json::array();
  for (const auto& [name, tenant] : tenants_) tenants.push_back(json_of(tenant));
  Json left = Json::object();
  for (const auto& [slot, number] : left_) left.set(std::to_string(slot.value), number);
  return Json::object()
      .set("schema", "primerl.tenants/1")
      .set("numbers", tenancies_.json())
      .set("left", std::move(left))
      .set("tenants", std::move(tenants));
}

Status TenantTable::restore(const Json& json) {
  const Json* numbers = json.find("numbers");
  const Json* tenants = json.find("tenants");
  if (numbers == nullptr || tenants == nullptr || !tenants->is_array())
    return corrupt("it has no 'numbers' or no 'tenants'");
  ASSIGN_OR_RETURN(Tenancies tenancies, Tenancies::read(*numbers));
  std::map<std::string, HostedTenant, std::less<>> read;
  std::set<TenantSlot> slots;
  for (const Json& one : tenants->as_array()) {
    ASSIGN_OR_RETURN(HostedTenant tenant, read_tenant(one, num_slots_, num_processes_));
    if (has_slot(tenant.state) && !slots.insert(tenant.slot).second)
      return corrupt("two tenants have one slot");
    const std::string name = tenant.name;
    if (!read.emplace(name, std::move(tenant)).second) return corrupt("a name is there twice");
  }
  const Json* left = json.find("left");
  if (left == nullptr || !left->is_object()) return corrupt("'left' is no table");
  std::map<TenantSlot, uint32_t> last;
  for (uint32_t slot = 0; slot < num_slots_; ++slot) {
    const Json* number = left->find(std::to_string(slot));
    if (number == nullptr) continue;
    if (!number->is_integer() || number->as_int() < 0 || number->as_int() > kTenancyMax)
      return corrupt("the number of a tenant that left is damaged");
    last[TenantSlot(slot)] = static_cast<uint32_t>(number->as_int());
  }
  tenants_ = std::move(read);
  tenancies_ = std::move(tenancies);
  left_ = std::move(last);
  return ok();
}

}  // namespace primerl
