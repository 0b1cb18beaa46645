#include "runtime/control/tenant_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/control/upload_folders.h"
#include "runtime/store/removed_tenants.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using OrderKind = TenantOrder::Kind;

/// More than kTenantsMax tables of kTenantTableBytesMax, as JSON.
constexpr size_t kTenantsFileBytesMax = size_t{128} << 20;

Tenant named(const HostedTenant& tenant) {
  Tenant one;
  one.name = tenant.name;
  one.tenancy = tenant.tenancy;
  return one;
}

TenantChange::Kind change_of(OrderKind kind) {
  switch (kind) {
    case OrderKind::kMake:
      return TenantChange::Kind::kJoin;
    case OrderKind::kStart:
      return TenantChange::Kind::kStart;
    case OrderKind::kPause:
      return TenantChange::Kind::kPause;
    case OrderKind::kResume:
      return TenantChange::Kind::kResume;
    case OrderKind::kSet:
      return TenantChange::Kind::kSet;
    case OrderKind::kDrain:
    case OrderKind::kDestroy:
      break;
  }
  return TenantChange::Kind::kLeave;
}

/// The order that an answer to a ChangeTenant is about; none: an order that needs no answer.
std::optional<OrderKind> order_of(uint8_t change) {
  if (change == static_cast<uint8_t>(TenantChange::Kind::kJoin)) return OrderKind::kMake;
  if (change == static_cast<uint8_t>(TenantChange::Kind::kLeave)) return OrderKind::kDestroy;
  return std::nullopt;
}

bool is_answered(OrderKind kind) {
  return kind == OrderKind::kMake || kind == OrderKind::kDrain || kind == OrderKind::kDestroy;
}

/// The number of a key in a resolved table, which has one line for each key; 0: it has none.
double number_in(const std::string& table, std::string_view key) {
  const std::string line = fmt::format("\n{} = ", key);
  const size_t at = table.find(line);
  return at == std::string::npos ? 0 : std::strtod(table.c_str() + at + line.size(), nullptr);
}

/// Whether clients train the tenant of a resolved table.
bool is_client_table(const std::string& table) {
  return table.find("\nclient = true\n") != std::string::npos;
}

/// Calls `use` with each tenant in the run's table.
void for_each_in_file(const fs::path& run_folder,
                      const std::function<void(const Json&, const HostedTenant&)>& use) {
  const auto text = read_text_file(tenants_file(run_folder), kTenantsFileBytesMax);
  if (!text.ok()) return;
  const auto json = parse_json(*text, "tenants.json");
  const Json* tenants = json.ok() ? json->find("tenants") : nullptr;
  if (tenants == nullptr || !tenants->is_array()) return;
  for (const Json& one : tenants->as_array()) {
    const auto name = one.get_string("name");
    const auto number = one.get_int("number");
    if (!name.ok() || !number.ok()) continue;
    HostedTenant tenant;
    tenant.name = *name;
    tenant.tenancy = static_cast<uint32_t>(*number);
    if (const auto table = one.get_string("table"); table.ok()) tenant.table = *table;
    use(one, tenant);
  }
}

}  // namespace

std::vector<ServedTenant> hosted_tenants(const fs::path& run_folder) {
  std::vector<ServedTenant> all;
  for_each_in_file(run_folder, [&](const Json& one, const HostedTenant& tenant) {
    ServedTenant& served = all.emplace_back(served_tenant(tenant));
    served.slot = TenantSlot();
    const auto state = one.get_string("state"), why = one.get_string("why");
    served.state = state.ok() ? *state : "";
    served.why = why.ok() ? *why : "";
  });
  return all;
}

std::vector<std::string> hosted_names(const fs::path& run_folder) {
  std::vector<std::string> names;
  for_each_in_file(run_folder, [&](const Json&, const HostedTenant& tenant) {
    names.push_back(tenancy_name(named(tenant)));
  });
  return names;
}

std::vector<std::string> hosted_clients(const fs::path& run_folder) {
  std::vector<std::string> names;
  for_each_in_file(run_folder, [&](const Json&, const HostedTenant& tenant) {
    if (is_client_table(tenant.table)) names.push_back(tenancy_name(named(tenant)));
  });
  return names;
}

ServedTenant served_tenant(const HostedTenant& tenant) {
  ServedTenant one;
  const bool has_slot = tenant.state != TenantState::kEnded && tenant.state != TenantState::kFailed;
  if (has_slot) one.slot = tenant.slot;
  one.name = tenancy_name(named(tenant));
  one.state = to_string(tenant.state);
  one.why = tenant.why;
  one.max_steps = static_cast<int64_t>(number_in(tenant.table, "max_steps"));
  one.share = number_in(tenant.table, "share");
  return one;
}

fs::path tenants_file(const fs::path& run_folder) { return run_folder / "tenants.json"; }

TenantControl::TenantControl(const Plan& plan, Setup setup)
    : plan_(plan), setup_(std::move(setup)), table_(plan) {}

Status TenantControl::open() {
  const fs::path file = tenants_file(setup_.run_folder);
  const auto text = read_text_file(file, kTenantsFileBytesMax);
  if (!text.ok() && text.error().code() != Code::kNotFound) return text.error();
  if (text.ok()) {
    ASSIGN_OR_RETURN(const Json json, parse_json(*text, file.string()));
    if (const Status restored = table_.restore(json); !restored.ok())
      return Error(restored.error()).while_doing(fmt::format("reading '{}'", file.string()));
    std::vector<std::string> admitted;
    std::vector<HostedTenant> removed;
    for (const auto& [name, tenant] : table_.tenants()) {
      if (tenant.state == TenantState::kAdmitted) admitted.push_back(name);
      const bool has_left =
          tenant.state == TenantState::kEnded || tenant.state == TenantState::kFailed;
      if (has_left && tenant.is_removed) removed.push_back(tenant);
    }
    for (const auto& name : admitted) RETURN_IF_ERROR(table_.start(name));
    for (const HostedTenant& tenant : removed) {
      remove_files(tenant);
      RETURN_IF_ERROR(table_.remove(tenant.name, tenant.files));
    }
    table_.all_restarted();
  }
  return save();
}

/// Written and synced before an order goes out.
Status TenantControl::save() {
  has_changed_ = true;
  return replace_file(*setup_.files, tenants_file(setup_.run_folder), table_.json().dump() + "\n");
}

Payload TenantControl::message_of(const TenantOrder& order) const {
  if (order.kind == OrderKind::kDrain) {
    const auto drain = drains_.find(order.slot);
    return Payload::of(
        DrainTenant{order.slot, order.tenancy, drain == drains_.end() ? 1 : drain->second.round});
  }
  ChangeTenant message{{change_of(order.kind), order.slot, order.tenancy, "", ""}};
  // A tenant of the plan that has left is not in its slot any more.
  if (const HostedTenant* tenant = table_.holder(order.slot);
      tenant != nullptr && tenant->tenancy == order.tenancy) {
    message.change.name = tenant->name;
    if (order.kind == OrderKind::kMake) message.change.table = tenant->table;
    if (order.kind == OrderKind::kSet) message.change.table = tenant->values;
  } else if (order.slot.index() < plan_.tenants.size()) {
    message.change.name = plan_.tenants[order.slot.index()].name;
  }
  return Payload::of(std::move(message));
}

void TenantControl::send(const TenantOrder& order, ProcessId to) {
  if (ready_.contains(to)) setup_.send(to, message_of(order));
}

/// A process that is not ready gets its orders when it is.
void TenantControl::send_to_ready(const TenantOrder& order, Time now) {
  if (is_answered(order.kind)) waiting_.insert_or_assign(order.slot, Waiting{order, now});
  if (order.kind == OrderKind::kDrain) return begin_round(order.slot);
  drains_.erase(order.slot);
  for (const ProcessId process : ready_) send(order, process);
}

void TenantControl::begin_round(TenantSlot slot) {
  const HostedTenant* tenant = table_.holder(slot);
  if (tenant == nullptr) return;
  Drain& drain = drains_[slot];
  ++drain.round;
  drain.steps.clear();
  drain.next_at.reset();
  for (const ProcessId process : ready_) send({OrderKind::kDrain, slot, tenant->tenancy}, process);
}

/// Saves the table, then sends the order.
Status TenantControl::carry_out(const std::optional<TenantOrder>& order, Time now) {
  RETURN_IF_ERROR(save());
  if (order) send_to_ready(*order, now);
  return ok();
}

void TenantControl::process_ready(ProcessId process, Time now) {
  ready_.insert(process);
  for (const TenantOrder& order : table_.on_restarted(process)) {
    if (order.kind == OrderKind::kDrain) {
      // Counts of the other processes are older than this incarnation.
      drains_[order.slot].last.reset();
      waiting_.insert_or_assign(order.slot, Waiting{order, now});
      begin_round(order.slot);
      continue;
    }
    const HostedTenant* tenant = table_.holder(order.slot);
    const bool is_about_holder = tenant != nullptr && tenant->tenancy == order.tenancy;
    const bool drains = is_about_holder && tenant->state == TenantState::kDraining;
    // kMake of a tenant that drains needs no answer: the drain waits for all.
    if (is_about_holder && tenant->unanswered.contains(process) &&
        order.kind == (drains ? OrderKind::kDestroy : OrderKind::kMake))
      waiting_.insert_or_assign(order.slot, Waiting{order, now});
    send(order, process);
  }
}

Duration TenantControl::time_to_next(Duration most, Time now) const {
  for (const auto& [slot, drain] : drains_)
    if (drain.next_at) most = std::min(most, std::max(*drain.next_at - now, Duration()));
  return most;
}

void TenantControl::tick(Time now) {
  for (auto& [slot, drain] : drains_) {
    if (!drain.next_at || now < *drain.next_at) continue;
    drain.next_at.reset();
    begin_round(slot);
  }
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    auto& [slot, one] = *waiting;
    const HostedTenant* tenant = table_.holder(slot);
    if (tenant == nullptr || tenant->tenancy != one.order.tenancy || tenant->unanswered.empty()) {
      waiting = waiting_.erase(waiting);
      continue;
    }
    if (now - one.since >= plan_.settings.dead_after) {
      one.since = now;
      const auto drain = drains_.find(slot);
      for (const ProcessId process : tenant->unanswered)
        if (drain == drains_.end() || !drain->second.steps.contains(process))
          send(one.order, process);
    }
    ++waiting;
  }
}

Status TenantControl::handle(ProcessId from, const TenantAnswered& answered, Time now) {
  if (!ready_.contains(from)) return ok();
  if (answered.round > 0) return on_drained(from, answered, now);
  const auto kind = order_of(answered.change);
  const HostedTenant* tenant = table_.holder(answered.slot);
  if (tenant == nullptr || tenant->tenancy != answered.tenancy) return ok();  // late
  const std::string process = plan_.process(from).name;
  if (!answered.text.empty() && kind != OrderKind::kDestroy) {
    const auto drain = table_.on_failed(answered.slot, answered.tenancy,
                                        fmt::format("process '{}': {}", process, answered.text));
    return drain ? carry_out(drain, now) : ok();
  }
  if (!kind) return ok();
  if (!answered.text.empty())
    setup_.warn(fmt::format("tenant '{}' has left, but process '{}' reports: {}", tenant->name,
                            process, answered.text));
  const HostedTenant before = *tenant;
  const auto next = table_.on_answer(from, {*kind, answered.slot, answered.tenancy});
  if (next) return carry_out(next, now);
  if (table_.holder(before.slot) != nullptr) return ok();  // other processes have not answered yet
  // Its files are removed before the table forgets them: after a crash they are removed again.
  if (before.is_removed) remove_files(before);
  waiting_.erase(before.slot);
  drains_.erase(before.slot);
  return save();
}

Status TenantControl::on_drained(ProcessId from, const TenantAnswered& answered, Time now) {
  const HostedTenant* tenant = table_.holder(answered.slot);
  const auto found = drains_.find(answered.slot);
  if (tenant == nullptr || tenant->tenancy != answered.tenancy || found == drains_.end() ||
      tenant->state != TenantState::kDraining || tenant->is_drained ||
      found->second.round != answered.round)
    return ok();  // late
  if (!answered.text.empty())
    (void)table_.on_failed(
        answered.slot, answered.tenancy,
        fmt::format("process '{}': {}", plan_.process(from).name, answered.text));
  Drain& drain = found->second;
  drain.steps.insert_or_assign(from, answered.num_steps);
  if (drain.steps.size() < plan_.processes.size()) return ok();
  uint64_t sum = 0;
  for (const auto& [process, steps] : drain.steps) sum += steps;
  if (drain.last != sum) {
    const bool changes = std::exchange(drain.last, sum).has_value();
    waiting_.insert_or_assign(answered.slot,
                              Waiting{{OrderKind::kDrain, answered.slot, answered.tenancy}, now});
    if (changes)
      drain.next_at = now + kRoundPause;
    else
      begin_round(answered.slot);
    return ok();
  }
  std::optional<TenantOrder> destroy;
  for (uint32_t i = 0; i < plan_.processes.size(); ++i)
    destroy = table_.on_answer(ProcessId(i), {OrderKind::kDrain, answered.slot, answered.tenancy});
  return carry_out(destroy, now);
}

Status TenantControl::on_finished(const TenantFinished& finished, Time now) {
  const TenantSlot slot = finished.tenant;
  const HostedTenant* tenant = table_.holder(slot);
  if (tenant == nullptr) return ok();
  const uint32_t tenancy = tenant->tenancy;
  if (finished.tenancy != tenancy && finished.tenancy != kTenancyUnknown) return ok();
  const std::string before = tenant->why;
  const auto drain = finished.fault.empty() ? table_.on_finished(slot, tenancy)
                                            : table_.on_failed(slot, tenancy, finished.fault);
  // The reason is saved too when the tenant drains already.
  return drain || tenant->why != before ? carry_out(drain, now) : ok();
}

/// A file that cannot be removed only uses space.
void TenantControl::remove_files(const HostedTenant& tenant) {
  if (tenant.files == RemovedFiles::kKeep) return;
  const std::string name = tenancy_name(named(tenant));
  const RemovedTenant removed{name, tenant.files == RemovedFiles::kPurge};
  const size_t layout = plan_.layout_tenants();
  std::vector<fs::path> gone = folders_of(setup_.run_folder, removed, layout);
  for (const std::string& file : line_files_of(removed, layout))
    gone.push_back(setup_.run_folder / file);
  if (removed.with_checkpoints)
    if (const fs::path data = data_folder_of_table(setup_.run_folder, tenant.table); !data.empty())
      gone.push_back(data);
  Status done = add_removed(*setup_.files, setup_.run_folder, removed);
  for (const fs::path& path : gone) {
    const Status one = setup_.files->remove_all(path);
    if (done.ok()) done = one;
  }
  if (!done.ok())
    setup_.warn(fmt::format("tenant '{}' has left a file: {}", name, done.error().text()));
}

Json TenantControl::picture(const HostedTenant& tenant, bool with_table) const {
  const std::string label = tenancy_name(named(tenant));
  Json one = Json::object();
  one.set("name", tenant.name)
      .set("state", to_string(tenant.state))
      .set("slot", tenant.slot.value)
      .set("number", tenant.tenancy)
      .set("folder", checkpoints_folder(setup_.run_folder, label, plan_.layout_tenants()).string());
  if (is_client_table(tenant.table)) one.set("client", true);
  if (!tenant.why.empty()) one.set("why", tenant.why);
  if (tenant.is_removed) one.set("is_removed", true);
  std::vector<std::string> late;
  if (tenant.state == TenantState::kStarting || tenant.state == TenantState::kDraining) {
    const auto drain = drains_.find(tenant.slot);
    for (const ProcessId process : tenant.unanswered)
      if (drain == drains_.end() || !drain->second.steps.contains(process))
        late.push_back(plan_.process(process).name);
  }
  if (!late.empty()) one.set("waits_for", Json::list(late));
  if (setup_.describe) setup_.describe(tenant, one);
  if (with_table) one.set("table", tenant.table);
  return one;
}

}  // namespace primerl
