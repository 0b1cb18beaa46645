#include "runtime/control/tenant_control.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "graph/joining.h"
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

Result<RemovedFiles> files_of(const Json& content) {
  ASSIGN_OR_RETURN(const std::string files, content.get_string("files"));
  if (files == "keep") return RemovedFiles::kKeep;
  if (files == "keep_checkpoints") return RemovedFiles::kKeepCheckpoints;
  if (files == "purge") return RemovedFiles::kPurge;
  return error(Code::kInvalid, "'files' is keep, keep_checkpoints or purge, not '{}'", files);
}

}  // namespace

namespace {

/// Whether clients train the tenant of a resolved table.
bool is_client_table(const std::string& table) {
  return table.find("\nclient = true\n") != std::string::npos;
}

/// Names in files of the tenants in the run's table for which `is_wanted`, given their tables.
std::vector<std::string> names_in_file(const fs::path& run_folder,
                                       bool (*is_wanted)(const std::string& table)) {
  std::vector<std::string> names;
  const auto text = read_text_file(tenants_file(run_folder), kTenantsFileBytesMax);
  if (!text.ok()) return names;
  const auto json = parse_json(*text, "tenants.json");
  const Json* tenants = json.ok() ? json->find("tenants") : nullptr;
  if (tenants == nullptr || !tenants->is_array()) return names;
  for (const Json& one : tenants->as_array()) {
    const auto name = one.get_string("name");
    const auto number = one.get_int("number");
    const auto table = one.get_string("table");
    if (!name.ok() || !number.ok() || !is_wanted(table.ok() ? *table : "")) continue;
    HostedTenant tenant;
    tenant.name = *name;
    tenant.tenancy = static_cast<uint32_t>(*number);
    names.push_back(tenancy_name(named(tenant)));
  }
  return names;
}

}  // namespace

std::vector<std::string> hosted_names(const fs::path& run_folder) {
  return names_in_file(run_folder, [](const std::string&) { return true; });
}

std::vector<std::string> hosted_clients(const fs::path& run_folder) {
  return names_in_file(run_folder, &is_client_table);
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
    for (const auto& [name, tenant] : table_.tenants())
      if (tenant.state == TenantState::kAdmitted) admitted.push_back(name);
    for (const auto& name : admitted) RETURN_IF_ERROR(table_.start(name));
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

void TenantControl::tick(Time now) {
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
    drain.last = sum;
    waiting_.insert_or_assign(answered.slot,
                              Waiting{{OrderKind::kDrain, answered.slot, answered.tenancy}, now});
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
  const size_t layout = plan_.layout_tenants();
  std::vector<fs::path> gone = {setup_.run_folder / rollouts_file_name(name, layout),
                                setup_.run_folder / evaluations_file_name(name, layout)};
  if (tenant.files == RemovedFiles::kPurge) {
    gone.push_back(checkpoints_folder(setup_.run_folder, name, layout));
    gone.push_back(clients_folder(setup_.run_folder, name));
  }
  for (const fs::path& path : gone)
    if (const Status removed = setup_.files->remove_all(path); !removed.ok())
      setup_.warn(fmt::format("tenant '{}' has left a file: {}", name, removed.error().text()));
}

void TenantControl::refuse(const std::string& id, const std::string& why, bool is_bad) {
  Json answer = Json::object().set("error", why);
  if (is_bad) answer.set("is_bad", true);
  setup_.answer(id, answer);
}

/// A person can repair what is invalid by another command; everything else is the run's state.
void TenantControl::refuse(const std::string& id, const Error& why) {
  const Code code = why.code();
  Json answer = Json::object().set("error", why.text()).set("code", to_string(code));
  if (code != Code::kExhausted && code != Code::kIo) answer.set("is_bad", true);
  setup_.answer(id, answer);
}

void TenantControl::ask(const std::string& id, const Json& content, const std::string& why_not,
                        Time now) {
  const auto verb = content.get_string("tenant_verb");
  if (!verb.ok()) return refuse(id, verb.error());
  if (*verb == "ls") return list(id);
  const auto name = content.get_string("name");
  if (name.ok() && is_of_another(content, *name))
    return refuse(id, unknown_tenant(*name, {}, "this run"));
  if (*verb == "show") return name.ok() ? show(id, *name) : refuse(id, name.error());
  if (!why_not.empty()) return refuse(id, why_not, false);
  if (*verb == "add") return add(id, content, now);
  change(id, *verb, content, now);
}

/// Whether the request is about an earlier tenant of this name.
bool TenantControl::is_of_another(const Json& content, const std::string& name) const {
  const auto number = content.get_int("number");
  const HostedTenant* const tenant = table_.find(name);
  return number.ok() && tenant != nullptr && std::cmp_not_equal(tenant->tenancy, *number);
}

void TenantControl::add(const std::string& id, const Json& content, Time now) {
  const auto file = content.get_string("file");
  if (!file.ok()) return refuse(id, file.error());
  std::map<std::string, std::string> present;
  for (uint32_t slot = 0; slot < plan_.num_slots(); ++slot)
    if (const HostedTenant* tenant = table_.holder(TenantSlot(slot)); tenant != nullptr)
      present.emplace(tenant->name, tenant->table);
  const CheckedTenant checked =
      check_joining_tenant(*file, plan_, present, Overrides(), *plan_.catalog);
  const std::string findings = render(checked.diagnostics, checked.sources);
  if (checked.tenant == nullptr)
    return setup_.answer(id, Json::object()
                                 .set("error", fmt::format("the tenant in '{}' cannot join", *file))
                                 .set("is_bad", true)
                                 .set("findings", findings));
  if (checked.table.size() > kTenantTableBytesMax)
    return refuse(id,
                  error(Code::kInvalid,
                        "the table of tenant '{}' has {} bytes with all its values, at most {} fit",
                        checked.tenant->name, checked.table.size(), kTenantTableBytesMax)
                      .note("write shorter texts or fewer environments"));
  const Json before = table_.json();
  const std::string name = checked.tenant->name;
  if (const auto admitted = table_.admit(name, checked.table); !admitted.ok())
    return refuse(id, admitted.error());
  if (const Status saved = save(); !saved.ok()) {
    CHECK(table_.restore(before).ok(), "a table of tenants does not read its own text");
    return refuse(id, saved.error());
  }
  // A crash from here on sends the order at the next start.
  send_to_ready(table_.start(name).value(), now);
  Json answer = Json::object().set("tenant", picture(*table_.find(name), false));
  if (!findings.empty()) answer.set("findings", findings);
  setup_.answer(id, answer);
}

void TenantControl::change(const std::string& id, const std::string& verb, const Json& content,
                           Time now) {
  const auto name = content.get_string("name");
  if (!name.ok()) return refuse(id, name.error());
  const Json before = table_.json();
  std::optional<HostedTenant> there;
  if (const HostedTenant* found = table_.find(*name); found != nullptr) there = *found;
  std::optional<TenantOrder> order;
  if (verb == "pause" || verb == "resume") {
    const auto changed = verb == "pause" ? table_.pause(*name) : table_.resume(*name);
    if (!changed.ok()) return refuse(id, changed.error());
    order = *changed;
  } else if (verb == "remove") {
    const auto files = files_of(content);
    if (!files.ok()) return refuse(id, files.error());
    const auto removed = table_.remove(*name, *files);
    if (!removed.ok()) return refuse(id, removed.error());
    order = *removed;
    there->files = *files;
    if (table_.find(*name) == nullptr) remove_files(*there);
  } else {
    return refuse(id, fmt::format("a run has no request '{}' about tenants", verb), true);
  }
  if (const Status saved = save(); !saved.ok()) {
    CHECK(table_.restore(before).ok(), "a table of tenants does not read its own text");
    return refuse(id, saved.error());
  }
  if (order) send_to_ready(*order, now);
  const HostedTenant* left = table_.find(*name);
  Json one = picture(left == nullptr ? *there : *left, false);
  if (left == nullptr) one.set("state", "removed");
  setup_.answer(id, Json::object().set("tenant", std::move(one)));
}

void TenantControl::list(const std::string& id) {
  Json tenants = Json::array();
  for (const auto& [name, tenant] : table_.tenants()) tenants.push_back(picture(tenant, false));
  setup_.answer(id, Json::object()
                        .set("tenants", std::move(tenants))
                        .set("slots", plan_.num_slots())
                        .set("free", table_.num_free_slots()));
}

void TenantControl::show(const std::string& id, const std::string& name) {
  if (const HostedTenant* tenant = table_.find(name); tenant != nullptr)
    return setup_.answer(id, Json::object().set("tenant", picture(*tenant, true)));
  std::vector<std::string> names;
  for (const auto& [each, tenant] : table_.tenants()) names.push_back(each);
  refuse(id, unknown_tenant(name, names, "this run"));
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
