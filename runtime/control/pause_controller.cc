#include "runtime/control/pause_controller.h"

#include <fmt/format.h>

#include <algorithm>

#include "actors/messages/load.h"
#include "runtime/exec/executor.h"

namespace primerl {

std::vector<InstanceId> PauseController::engines_of(TenantSlot tenant) const {
  std::vector<InstanceId> engines;
  for (uint32_t i = 0; i < plan_.instances.size(); ++i)
    if (!plan_.is_free(plan_.instances[i].tenant) &&
        input_for(plan_, InstanceId(i), message_type<EngineHold>(), tenant))
      engines.push_back(InstanceId(i));
  return engines;
}

void PauseController::refuse(const std::string& id, const std::string& why, bool is_bad) {
  Json answer = Json::object().set("error", why);
  if (is_bad) answer.set("is_bad", true);
  answer_(id, answer);
}

std::string PauseController::why_no_engine(TenantSlot tenant) const {
  if (tenant.is_none()) return "the run has no engine: no actor of it takes an EngineHold";
  std::vector<std::string> engines, tenants;
  for (const InstanceId engine : engines_of({})) engines.push_back(plan_.instance(engine).name);
  for (const Tenant& each : plan_.tenants) tenants.push_back(each.name);
  return fmt::format(
      "tenant '{}' has no engine of its own: {} serve{} all tenants ({}); without --tenant "
      "{} stand{} still for all of them",
      plan_.tenants[tenant.index()].name, fmt::join(engines, ", "), engines.size() == 1 ? "s" : "",
      fmt::join(tenants, ", "), engines.size() == 1 ? "it" : "they",
      engines.size() == 1 ? "s" : "");
}

void PauseController::ask(const std::string& id, const Json& content, const std::string& why_not,
                          Time now) {
  const auto owner = content.get_string("owner");
  const auto lease = content.get_int("lease_ns");
  if (!owner.ok() || !lease.ok()) return refuse(id, "this is no question of `pause` or `unpause`");
  if (!why_not.empty()) return refuse(id, why_not);
  HoldEngines hold;
  hold.owner = *owner;
  hold.lease = Duration::nanoseconds(*lease);
  if (const Json* tenant = content.find("tenant"); tenant != nullptr) {
    const auto found =
        std::find_if(plan_.tenants.begin(), plan_.tenants.end(), [tenant](const Tenant& each) {
          return tenant->is_string() && each.name == tenant->as_string();
        });
    if (found == plan_.tenants.end()) {
      std::vector<std::string> names;
      for (const Tenant& each : plan_.tenants) names.push_back(each.name);
      const std::string name = tenant->is_string() ? tenant->as_string() : tenant->dump();
      return refuse(id, unknown_tenant(name, names, "this run").text(), true);
    }
    // In a run with one tenant every engine belongs to it.
    if (plan_.tenants.size() > 1) hold.tenant = found->slot;
  }
  const auto engines = engines_of(hold.tenant);
  if (engines.empty()) return refuse(id, why_no_engine(hold.tenant), true);
  if (open_.size() >= kOpenMax)
    return refuse(id, fmt::format("{} questions wait for the engines' answers already; ask again "
                                  "when they have come",
                                  open_.size()));
  hold.number = ++newest_;
  Question& question = open_[hold.number];
  question.id = id;
  question.asked = hold;
  question.at = now;
  question.waits_for.insert(engines.begin(), engines.end());
  if (owners_.size() < kOwnersMax) owners_.insert(hold.owner);
  if (hold.lease == Duration())
    std::erase_if(holds_, [&hold](const auto& each) {
      return each.first.first == hold.owner &&
             (hold.tenant.is_none() || each.first.second == hold.tenant);
    });
  std::set<ProcessId> processes;
  for (const InstanceId engine : engines) processes.insert(plan_.process_of(engine));
  for (const ProcessId process : processes) send_(process, Payload::of(hold));
}

void PauseController::handle(ProcessId from, const HoldAnswered& answered) {
  const auto found = open_.find(answered.number);
  const InstanceId engine(answered.instance);
  if (found == open_.end() || engine.index() >= plan_.instances.size() ||
      plan_.process_of(engine) != from || found->second.waits_for.erase(engine) == 0)
    return;
  Question& question = found->second;
  if (answered.text.empty()) {
    question.obeyed.insert(engine);
    note(question);
  } else if (question.asked.lease == Duration() &&
             answered.code == static_cast<uint8_t>(Code::kNotFound)) {
    question.unheld.insert(engine);
  } else {
    question.refused.emplace_back(engine, answered.text);
  }
  if (!question.waits_for.empty()) return;
  close(question);
  open_.erase(found);
}

/// The lease is counted from the time of the request; the engines received it slightly later.
void PauseController::note(const Question& question) {
  const HoldEngines& asked = question.asked;
  if (asked.lease == Duration()) return;
  const Holder holder{asked.owner, asked.tenant};
  std::erase_if(holds_, [&question](const auto& each) { return each.second <= question.at; });
  if (holds_.size() >= kHoldsMax && !holds_.contains(holder)) return;
  holds_.insert_or_assign(holder, question.at + asked.lease);
}

void PauseController::close(const Question& question) {
  const auto names = [this](const std::set<InstanceId>& engines) {
    std::vector<std::string> each;
    for (const InstanceId engine : engines) each.push_back(plan_.instance(engine).name);
    return Json::list(each);
  };
  Json refused = Json::array();
  for (const auto& [engine, why] : question.refused)
    refused.push_back(Json::object().set("engine", plan_.instance(engine).name).set("why", why));
  std::vector<std::string> holders;
  for (const HoldPicture& hold : holds(question.at)) holders.push_back(hold.owner);
  answer_(question.id, Json::object()
                           .set("obeyed", names(question.obeyed))
                           .set("unheld", names(question.unheld))
                           .set("refused", std::move(refused))
                           .set("late", names(question.waits_for))
                           .set("holders", Json::list(holders)));
}

void PauseController::tick(Time now) {
  std::erase_if(open_, [&](const auto& each) {
    if (now - each.second.at < kAnswerMax) return false;
    close(each.second);
    return true;
  });
}

void PauseController::process_back(ProcessId process, Time now) {
  for (const HoldPicture& lasting : holds(now)) {
    HoldEngines hold;
    hold.owner = lasting.owner;
    hold.tenant = lasting.tenant;
    hold.lease = lasting.until - now;
    for (const InstanceId engine : engines_of(hold.tenant)) {
      if (plan_.process_of(engine) != process) continue;
      send_(process, Payload::of(hold));
      break;
    }
  }
}

void PauseController::heard(ProcessId from, const std::vector<EngineUse>& engines, Time now) {
  if (engines.empty()) return;  // engines are not made yet
  auto& owners = reported_[from];
  owners.clear();
  for (const EngineUse& engine : engines)
    for (const HolderReport& holder : engine.holders) {
      Time& until = owners[holder.owner];
      until = std::max(until, now + Duration::nanoseconds(holder.left_ns));
    }
}

void PauseController::end(const std::string& why) {
  holds_.clear();
  for (const auto& [number, question] : std::exchange(open_, {})) refuse(question.id, why);
}

std::vector<HoldPicture> PauseController::holds(Time now) const {
  auto all = holds_;
  for (const auto& [process, owners] : reported_)
    for (const auto& [owner, until] : owners)
      if (!owners_.contains(owner)) {
        Time& latest = all[{owner, TenantSlot()}];
        latest = std::max(latest, until);
      }
  std::vector<HoldPicture> pictures;
  for (const auto& [holder, until] : all)
    if (until > now) pictures.push_back({holder.first, holder.second, until});
  return pictures;
}

}  // namespace primerl
