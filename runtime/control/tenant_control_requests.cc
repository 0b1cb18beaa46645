// The requests of persons about tenants: each is checked as a whole, saved, and then ordered.
#include <utility>

#include "graph/joining.h"
#include "graph/tenant_values.h"
#include "runtime/control/tenant_control.h"
#include "runtime/control/upload_folders.h"

namespace primerl {
namespace {

Result<RemovedFiles> files_of(const Json& content) {
  ASSIGN_OR_RETURN(const std::string files, content.get_string("files"));
  if (files == "keep") return RemovedFiles::kKeep;
  if (files == "keep_checkpoints") return RemovedFiles::kKeepCheckpoints;
  if (files == "purge") return RemovedFiles::kPurge;
  return error(Code::kInvalid, "'files' is keep, keep_checkpoints or purge, not '{}'", files);
}

}  // namespace

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
  if (*verb == "set") return set(id, content, now);
  change(id, *verb, content, now);
}

/// Whether the request is about an earlier tenant of this name.
bool TenantControl::is_of_another(const Json& content, const std::string& name) const {
  const auto number = content.get_int("number");
  const HostedTenant* const tenant = table_.find(name);
  return number.ok() && tenant != nullptr && std::cmp_not_equal(tenant->tenancy, *number);
}

/// The tables of the tenants that have slots.
std::map<std::string, std::string> TenantControl::present_tables() const {
  std::map<std::string, std::string> present;
  for (uint32_t slot = 0; slot < plan_.num_slots(); ++slot)
    if (const HostedTenant* tenant = table_.holder(TenantSlot(slot)); tenant != nullptr)
      present.emplace(tenant->name, tenant->table);
  return present;
}

/// A refused request changes nothing: the table with the values is checked as a whole first.
void TenantControl::set(const std::string& id, const Json& content, Time now) {
  const auto name = content.get_string("name");
  if (!name.ok()) return refuse(id, name.error());
  const HostedTenant* const tenant = table_.find(*name);
  if (tenant == nullptr) return refuse_unknown(id, *name);
  const Json* const numbers = content.find("values");
  const auto asked = TenantValues::of(numbers == nullptr ? Json() : *numbers);
  if (!asked.ok()) return refuse(id, asked.error());
  auto all = TenantValues::read(tenant->values);
  if (!all.ok()) return refuse(id, all.error());
  all->merge(*asked);
  std::string table = all->in_table(tenant->table);
  const Json before = table_.json();
  auto order = table_.set(*name, table, all->text());
  if (!order.ok()) return refuse(id, order.error());
  const CheckedTenant checked =
      check_changed_tenant(*name, plan_, present_tables(), *plan_.catalog);
  Status valid = checked.tenant == nullptr
                     ? Status(error(Code::kInvalid, "tenant '{}' cannot have these values", *name))
                     : ok();
  if (valid.ok())
    if (const auto others = asked->other_than(*checked.tenant); !others.empty())
      valid = error(Code::kInvalid, "'{}' is more than the data of tenant '{}' has", others.front(),
                    *name)
                  .note("write a smaller number");
  if (valid.ok()) valid = save();
  if (valid.ok()) {
    send_to_ready(*order, now);
    return setup_.answer(id, Json::object().set("tenant", picture(*table_.find(*name), true)));
  }
  CHECK(table_.restore(before).ok(), "a table of tenants does not read its own text");
  if (checked.tenant != nullptr) return refuse(id, valid.error());
  setup_.answer(id, Json::object()
                        .set("error", valid.error().message())
                        .set("is_bad", true)
                        .set("findings", render(checked.diagnostics, checked.sources)));
}

void TenantControl::add(const std::string& id, const Json& content, Time now) {
  const auto file = content.get_string("file");
  if (!file.ok()) return refuse(id, file.error());
  Overrides overrides;
  overrides.uploaded_data = tenant_data_folder(setup_.run_folder).string();
  const CheckedTenant checked =
      check_joining_tenant(*file, plan_, present_tables(), overrides, *plan_.catalog);
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
  bool has_removed_files = false;
  if (verb == "pause" || verb == "resume") {
    const auto changed = verb == "pause" ? table_.pause(*name) : table_.resume(*name);
    if (!changed.ok()) return refuse(id, changed.error());
    order = *changed;
  } else if (verb == "remove") {
    const auto files = files_of(content);
    if (!files.ok()) return refuse(id, files.error());
    if (*files != RemovedFiles::kKeep && table_.mark_removed(*name, *files)) {
      // The table says so before a file is removed, so a crash does not leave the others.
      if (const Status saved = save(); !saved.ok()) {
        CHECK(table_.restore(before).ok(), "a table of tenants does not read its own text");
        return refuse(id, saved.error());
      }
      has_removed_files = true;
      remove_files(*table_.find(*name));
    }
    const auto removed = table_.remove(*name, *files);
    if (!removed.ok()) return refuse(id, removed.error());
    order = *removed;
  } else {
    return refuse(id, fmt::format("a run has no request '{}' about tenants", verb), true);
  }
  if (const Status saved = save(); !saved.ok()) {
    if (!has_removed_files) {
      CHECK(table_.restore(before).ok(), "a table of tenants does not read its own text");
      return refuse(id, saved.error());
    }
    // The saved table still names it as removed: the next start removes it.
    setup_.warn(
        fmt::format("tenant '{}' is in tenants.json still: {}", *name, saved.error().text()));
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
  refuse_unknown(id, name);
}

void TenantControl::refuse_unknown(const std::string& id, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [each, tenant] : table_.tenants()) names.push_back(each);
  refuse(id, unknown_tenant(name, names, "this run"));
}

}  // namespace primerl
