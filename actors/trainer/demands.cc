#include "actors/trainer/demands.h"

#include <utility>

#include "actors/trainer/filters.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/loss.h"

namespace primerl {
namespace {

bool trains_on_rollouts(const Tenant& tenant, const OwnObjectives& own) {
  const auto use = use_of(tenant, own);
  return use && use->is_of_rollouts();
}

constexpr std::string_view kAlike = "all rollouts of a task are equal, so nothing would train";

}  // namespace

std::string fault_of_loss(const Tenant& tenant, const OwnObjectives& own) {
  const TenantLoss& written = tenant.loss;
  LossOptions loss;
  loss.kind = tenant.objective;
  loss.own = own;
  loss.clip_low = written.clip_low;
  loss.clip_high = written.clip_high;
  loss.advantage_weight = written.advantage_weight;
  loss.kl_weight = written.kl_weight;
  loss.clip_dual = written.clip_dual;
  loss.weight_low = written.weight_low;
  loss.weight_high = written.weight_high;
  loss.moment_max = written.moment_max;
  loss.proximal_share = written.proximal_share;
  loss.reference_weight = written.reference_weight;
  loss.jsd_beta = written.jsd_beta;
  loss.mean = written.mean;
  // Without both, the mean is the learner's, which may be "constant": the learner checks them.
  if (!written.kind.empty() || !written.mean.empty()) loss.mean_tokens = written.mean_tokens;
  const Status valid = validate(loss);
  if (!valid.ok()) {
    std::string text = "cannot be used: " + valid.error().message();  // one line
    for (const auto& note : valid.error().notes()) text += "; " + note;
    return text;
  }
  if (objective_of(loss).needs_reference() && !tenant.adapter.is_there() &&
      !tenant.teacher.is_there())
    return fmt::format(
        "cannot be used: '{}' needs a reference model, which is the base of an adapter or a "
        "teacher, and the tenant trains all weights without one",
        tenant.objective);
  if (objective_of(loss).rule == ObjectiveRule::kTopK && tenant.teacher.top_k == 0)
    return fmt::format(
        "cannot be used: '{}' needs the likeliest tokens of a teacher, and teacher.top_k is 0; "
        "write teacher = {{ model = \"...\", top_k = 32 }}",
        tenant.objective);
  return {};
}

std::string fault_of_advantage(const Tenant& tenant, const OwnObjectives& own) {
  const TenantAdvantage& written = tenant.advantage;
  const auto use = use_of(tenant, own);
  const bool is_written =
      !written.kind.empty() || written.length_weight > 0 || written.overlong_to > 0;
  if (is_written && use && !use->uses_advantages)
    return fmt::format("has no effect: '{}' uses no rewards", tenant.objective);
  if (written.overlong_to > 0 && written.overlong_from >= written.overlong_to)
    return fmt::format("cannot be used: overlong_from {} is not below overlong_to {}",
                       written.overlong_from, written.overlong_to);
  if (written.overlong_from > 0 && written.overlong_to == 0)
    return "cannot be used: overlong_from has no effect without overlong_to";
  return {};
}

std::string fault_of_filter_keys(const Tenant& tenant, const OwnObjectives& own) {
  const auto use = use_of(tenant, own);
  if (!use || use->is_of_rollouts()) return {};
  for (const auto& [key, value] : {std::pair{"repetition_max", tenant.filters.repetition_max},
                                   std::pair{"gibberish_from", tenant.filters.gibberish_from}})
    if (value > 0)
      return fmt::format("cannot be used: {} reads log-probabilities, which supervised data lacks",
                         key);
  return {};
}

std::string fault_of_group_size(const Tenant& tenant, const OwnObjectives& own) {
  const auto use = use_of(tenant, own);
  if (!use || !use->compares_in_group() || tenant.group_size >= 2) return {};
  return "is 1: a group of one rollout has no advantage, so nothing would train";
}

std::string fault_of_temperature(const Tenant& tenant, const OwnObjectives& own) {
  if (!trains_on_rollouts(tenant, own) || static_cast<float>(tenant.sampling.temperature) > 0)
    return {};
  return fmt::format("is 0: greedy {}", kAlike);
}

std::string fault_of_top_k(const Tenant& tenant, const OwnObjectives& own) {
  if (!trains_on_rollouts(tenant, own) || tenant.sampling.top_k != 1) return {};
  return fmt::format("is 1: it leaves one token, and {}", kAlike);
}

std::string fault_of_top_p(const Tenant& tenant, const OwnObjectives& own) {
  // Of 2^20 tokens, the likeliest has at least this probability, so top_p leaves that token alone.
  constexpr double kOneTokenMass = 1.0 / (1 << 20);
  if (!trains_on_rollouts(tenant, own) || tenant.sampling.top_p > kOneTokenMass) return {};
  return fmt::format("is {}: it leaves one token, and {}", tenant.sampling.top_p, kAlike);
}

std::string fault_of_min_p(const Tenant& tenant, const OwnObjectives& own) {
  if (!trains_on_rollouts(tenant, own) || static_cast<float>(tenant.sampling.min_p) < 1) return {};
  return fmt::format("is {}: it leaves one token, and {}", tenant.sampling.min_p, kAlike);
}

std::string fault_of_targets(const Tenant& tenant, const OwnObjectives&) {
  if (!tenant.adapter.is_there()) return {};
  AdapterConfig config;
  config.targets = tenant.adapter.targets;
  const Status valid = validate(config);
  return valid.ok() ? std::string() : "cannot be used: " + valid.error().message();
}

}  // namespace primerl
