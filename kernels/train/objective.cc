#include "kernels/train/objective.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/train/advantage.h"

namespace primerl {
namespace {

using L = LossOptions;
using Number = ObjectiveSpec::Number;

constexpr Number kAll[] = {
    {&L::clip_low, "clip_low"},
    {&L::clip_high, "clip_high"},
    {&L::clip_dual, "clip_dual"},
    {&L::weight_low, "weight_low"},
    {&L::weight_high, "weight_high"},
    {&L::moment_max, "moment_max"},
    {&L::proximal_share, "proximal_share"},
    {&L::advantage_weight, "advantage_weight"},
    {&L::kl_weight, "kl_weight"},
    {&L::reference_weight, "reference_weight"},
    {&L::jsd_beta, "jsd_beta"},
};

Number low(double value) { return {&L::clip_low, "clip_low", value}; }
Number high(double value) { return {&L::clip_high, "clip_high", value}; }
Number dual(double value) { return {&L::clip_dual, "clip_dual", value}; }
Number least(double value) { return {&L::weight_low, "weight_low", value}; }
Number most(double value) { return {&L::weight_high, "weight_high", value}; }
Number moment(double value) { return {&L::moment_max, "moment_max", value}; }
Number share(double value) { return {&L::proximal_share, "proximal_share", value}; }
Number kl(double value) { return {&L::kl_weight, "kl_weight", value}; }
Number gain() { return {&L::advantage_weight, "advantage_weight", 1}; }
Number reference(double value = 0) { return {&L::reference_weight, "reference_weight", value}; }

Number beta(double value) { return {&L::jsd_beta, "jsd_beta", value}; }

/// Trust regions and clipped ratios of single tokens.
std::vector<ObjectiveSpec> clipped_objectives() {
  using R = ObjectiveRule;
  constexpr auto kToken = LossMean::kToken, kSequence = LossMean::kSequence;
  return {
      {"dppo",
       R::kDppo,
       "policy gradient inside a trust region of probabilities, plus a KL term",
       {low(0.2), high(0.2), gain(), kl(1e-3), reference()},
       kToken,
       "mean"},
      {"ipo",
       R::kIpo,
       "dppo with a trust region that does not look at the sign of the advantage",
       {low(0.3), high(0.3), gain(), kl(1e-3), reference()},
       kToken,
       "mean"},
      {"ppo",
       R::kRatioClip,
       "the clipped ratio of PPO, every token alike",
       {low(0.2), high(0.2), dual(0), gain(), reference()},
       kToken,
       "z_score"},
      {"grpo",
       R::kRatioClip,
       "the clipped ratio of PPO, every sequence alike",
       {low(0.2), high(0.2), dual(0), gain(), reference()},
       kSequence,
       "z_score"},
      {"dapo",
       R::kRatioClip,
       "the clipped ratio with a higher upper bound, every token alike",
       {low(0.2), high(0.28), dual(0), gain(), reference()},
       kToken,
       "z_score"},
      {"dr_grpo",
       R::kRatioClip,
       "the clipped ratio without a division by length or deviation",
       {low(0.2), high(0.2), dual(0), gain(), reference()},
       LossMean::kConstant,
       "mean"},
      {"reinforce_pp",
       R::kRatioClip,
       "the clipped ratio with advantages of the whole batch",
       {low(0.2), high(0.2), dual(0), gain(), reference()},
       kToken,
       "batch"},
  };
}

/// Ratios of sequences, and weights that are capped or decide which tokens train.
std::vector<ObjectiveSpec> weighted_objectives() {
  using R = ObjectiveRule;
  constexpr auto kToken = LossMean::kToken, kSequence = LossMean::kSequence;
  return {
      {"gspo",
       R::kSequenceClip,
       "the clipped ratio of whole sequences",
       {low(3e-4), high(4e-4), gain(), reference()},
       kSequence,
       "z_score"},
      {"cispo",
       R::kWeightCap,
       "policy gradient with a capped weight; no token is dropped",
       {least(0), most(5), gain(), reference()},
       kToken,
       "z_score"},
      {"tis",
       R::kWeightCap,
       "policy gradient with truncated importance sampling",
       {least(0), most(2), gain(), reference()},
       kToken,
       "mean"},
      {"icepop",
       R::kWeightBand,
       "policy gradient that drops tokens with a weight outside a band",
       {least(0.5), most(5), gain(), reference()},
       kToken,
       "mean"},
      {"decoupled_ppo",
       R::kDecoupled,
       "the clipped ratio to a proximal policy, times its weight against the sampling one",
       {low(0.2), high(0.2), most(5), share(1), gain(), reference()},
       kToken,
       "z_score"},
      {"m2po",
       R::kMoment,
       "drops the tokens that moved most, until the second moment is small",
       {moment(0.04), gain(), reference()},
       kToken,
       "z_score"},
  };
}

/// Objectives that follow a reference, a teacher or given answers, and plain ratios.
std::vector<ObjectiveSpec> other_objectives() {
  using R = ObjectiveRule;
  constexpr auto kToken = LossMean::kToken;
  return {
      {"ref_kl",
       R::kReferenceKl,
       "follows a reference model on the policy's own rollouts",
       {low(0.2), gain(), kl(1e-3)},
       kToken,
       "mean"},
      {"opd",
       R::kDistillation,
       "on-policy distillation: each token's advantage is the teacher's",
       {reference(1)},
       kToken,
       "mean"},
      {"importance_sampling",
       R::kImportance,
       "policy gradient with the plain ratio to the sampling policy; nothing is limited",
       {gain(), reference()},
       kToken,
       "mean"},
      {"dro",
       R::kRegularized,
       "policy gradient that a square keeps near the sampling policy, without a ratio",
       {gain(), kl(0.05), reference()},
       kToken,
       "mean"},
      {"gkd",
       R::kTopK,
       "generalised distillation: the distribution of the teacher over its likeliest tokens",
       {beta(0)},
       kToken,
       "mean"},
      {"cross_entropy",
       R::kCrossEntropy,
       "supervised: the log-probability of given answers",
       {},
       kToken,
       "mean"},
      {"ce", R::kCrossEntropy, "another name of cross_entropy", {}, kToken, "mean"},
  };
}

/// In the order in which they are listed to a person.
std::vector<ObjectiveSpec> make_objectives() {
  std::vector<ObjectiveSpec> all = clipped_objectives();
  for (const auto& more : {weighted_objectives(), other_objectives()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

constexpr std::string_view kMeans[] = {"token", "sequence", "constant"};

const Number* find_number(const ObjectiveSpec& spec, std::string_view name) {
  const auto found = std::ranges::find(spec.numbers, name, &Number::name);
  return found == spec.numbers.end() ? nullptr : &*found;
}

std::string options_text(const ObjectiveSpec& spec) {
  std::vector<std::string> names;
  for (const Number& number : spec.numbers) names.emplace_back(number.name);
  if (spec.rule != ObjectiveRule::kCrossEntropy) names.insert(names.end(), {"mean", "mean_tokens"});
  if (names.empty()) return fmt::format("'{}' has no options", spec.name);
  return fmt::format("options of '{}': {}", spec.name, fmt::join(names, ", "));
}

Error not_of(const ObjectiveSpec& spec, std::string_view option) {
  std::vector<std::string_view> owners;
  for (const auto& other : objectives())
    if (find_number(other, option) != nullptr) owners.push_back(other.name);
  Error fault = error(Code::kInvalid, "objective '{}' has no option '{}'", spec.name, option)
                    .note(options_text(spec));
  if (!owners.empty())
    (void)std::move(fault).note(fmt::format("'{}' is of {}", option, fmt::join(owners, ", ")));
  return fault;
}

double number_of(const LossOptions& options, const ObjectiveSpec& spec, double L::*member) {
  if (options.*member >= 0) return options.*member;
  for (const Number& number : spec.numbers)
    if (number.member == member) return number.value;
  return 0;
}

Status check_mean(const LossOptions& options, const ObjectiveSpec& spec) {
  const bool is_supervised = spec.rule == ObjectiveRule::kCrossEntropy;
  if (is_supervised && !options.mean.empty()) return not_of(spec, "mean");
  if (!options.mean.empty() && std::ranges::find(kMeans, options.mean) == std::end(kMeans))
    return error(Code::kInvalid, "unknown mean '{}'", options.mean)
        .note("valid: token, sequence, constant");
  if (options.mean_tokens < 0)
    return error(Code::kInvalid, "mean_tokens {} must be 0 or above", options.mean_tokens);
  const bool is_constant =
      options.mean.empty() ? spec.mean == LossMean::kConstant : options.mean == "constant";
  if (options.mean_tokens > 0 && !is_constant)
    return error(Code::kInvalid, "mean_tokens {} has no effect", options.mean_tokens)
        .note("it is the divisor of mean = \"constant\"");
  return ok();
}

}  // namespace

bool ObjectiveSpec::uses_advantages() const {
  return rule != ObjectiveRule::kCrossEntropy && rule != ObjectiveRule::kReferenceKl &&
         rule != ObjectiveRule::kDistillation && rule != ObjectiveRule::kTopK;
}

std::span<const ObjectiveSpec> objectives() {
  static const std::vector<ObjectiveSpec> all = make_objectives();
  return all;
}

const ObjectiveSpec* find_objective(std::string_view name, const OwnObjectives& own) {
  const auto find = [&](std::span<const ObjectiveSpec> all) {
    const auto found = std::ranges::find(all, name, &ObjectiveSpec::name);
    return found == all.end() ? nullptr : &*found;
  };
  const ObjectiveSpec* const found = find(objectives());
  return found != nullptr || own == nullptr ? found : find(*own);
}

std::vector<std::string> objective_names(const OwnObjectives& own) {
  std::vector<std::string> names;
  for (const auto& spec : objectives()) names.emplace_back(spec.name);
  if (own != nullptr)
    for (const auto& spec : *own) names.emplace_back(spec.name);
  return names;
}

Objective objective_of(const LossOptions& options) {
  const ObjectiveSpec* const found = find_objective(options.kind, options.own);
  CHECK(found != nullptr, "the name was checked");
  const ObjectiveSpec& spec = *found;
  Objective made;
  made.rule = spec.rule;
  made.clip_low = number_of(options, spec, &L::clip_low);
  made.clip_high = number_of(options, spec, &L::clip_high);
  made.clip_dual = number_of(options, spec, &L::clip_dual);
  made.weight_low = number_of(options, spec, &L::weight_low);
  made.weight_high = number_of(options, spec, &L::weight_high);
  made.moment_max = number_of(options, spec, &L::moment_max);
  made.proximal_share = number_of(options, spec, &L::proximal_share);
  made.advantage_weight = number_of(options, spec, &L::advantage_weight);
  made.kl_weight = number_of(options, spec, &L::kl_weight);
  made.reference_weight = number_of(options, spec, &L::reference_weight);
  made.jsd_beta = number_of(options, spec, &L::jsd_beta);
  const auto mean = std::ranges::find(kMeans, options.mean);
  made.mean = mean == std::end(kMeans) ? spec.mean : static_cast<LossMean>(mean - kMeans);
  made.mean_tokens = options.mean_tokens;
  made.own_loss = spec.own_loss;
  made.measures = spec.measures;
  return made;
}

Status check_own_objective(const ObjectiveSpec& spec) {
  const auto refuse = [&](std::string_view why) {
    return error(Code::kInvalid, "objective '{}' {}", spec.name, why);
  };
  if (spec.doc.empty()) return refuse("has no doc text");
  if (spec.rule != ObjectiveRule::kOwn || spec.own_loss == nullptr) return refuse("has no loss");
  if (!advantage_kind(spec.advantage))
    return refuse(fmt::format("has an unknown advantage '{}'", spec.advantage));
  for (const Number& number : spec.numbers) {
    const bool is_known = std::ranges::any_of(kAll, [&](const Number& known) {
      return known.member == number.member && known.name == number.name;
    });
    if (!is_known || !std::isfinite(number.value) || number.value < 0)
      return refuse(fmt::format("has a number '{}' of {}", number.name, number.value));
  }
  return ok();
}

Status validate(const LossOptions& options) {
  const ObjectiveSpec* const spec = find_objective(options.kind, options.own);
  if (spec == nullptr)
    return error(Code::kInvalid, "unknown objective '{}'", options.kind)
        .note(fmt::format("objectives: {}", fmt::join(objective_names(options.own), ", ")));
  for (const Number& number : kAll) {
    const double value = options.*number.member;
    if (!std::isfinite(value) || (value < 0 && value != -1))
      return error(Code::kInvalid, "{} {} must be 0 or above", number.name, value)
          .note(fmt::format("-1 is the default of '{}'", spec->name));
    if (value >= 0 && find_number(*spec, number.name) == nullptr) return not_of(*spec, number.name);
  }
  if (options.clip_dual > 0 && options.clip_dual < 1)
    return error(Code::kInvalid, "clip_dual {} is not 0, 1 or above", options.clip_dual);
  if (options.proximal_share > 1)
    return error(Code::kInvalid, "proximal_share {} is not in [0, 1]", options.proximal_share);
  if (options.jsd_beta > 1)
    return error(Code::kInvalid, "jsd_beta {} is not in [0, 1]", options.jsd_beta);
  const Objective made = objective_of(options);
  if (spec->rule == ObjectiveRule::kDistillation && made.reference_weight == 0)
    return error(Code::kInvalid, "reference_weight 0: nothing of '{}' would train", spec->name);
  if (spec->rule != ObjectiveRule::kOwn && find_number(*spec, "weight_high") != nullptr &&
      made.weight_high == 0)
    return error(Code::kInvalid, "weight_high 0: nothing of '{}' would train", spec->name);
  if (made.weight_high > 0 && made.weight_low > made.weight_high)
    return error(Code::kInvalid, "weight_low {} is above weight_high {}", made.weight_low,
                 made.weight_high);
  return check_mean(options, *spec);
}

}  // namespace primerl
