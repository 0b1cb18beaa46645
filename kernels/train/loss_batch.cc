#include "kernels/train/loss_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/train/learner.h"
#include "kernels/train/objective.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

/// A number of a loss on the wire.
struct WireNumber {
  std::string_view name;
  double value = 0;  // its default
};

struct WireLoss {
  std::string_view name;
  std::vector<WireNumber> numbers = {};
};

const std::vector<WireLoss>& wire_losses() {
  static const std::vector<WireLoss> all = {
      {"cross_entropy"},
      {"importance_sampling"},
      {"ppo", {{"clip_low_threshold", 0.8}, {"clip_high_threshold", 1.2}}},
      {"cispo", {{"clip_low_threshold", 0}, {"clip_high_threshold", 4}}},
      {"dro", {{"beta", 0.1}}}};
  return all;
}

Error unknown_loss(std::string_view name) {
  std::vector<std::string_view> names;
  for (const WireLoss& loss : wire_losses()) names.push_back(loss.name);
  return error(Code::kInvalid, "unknown loss '{}'", name)
      .note(fmt::format("losses: {}", fmt::join(names, ", ")));
}

/// The numbers in the order of the loss.
Result<std::vector<double>> numbers_of(const WireLoss& loss,
                                       const std::map<std::string, double>& config) {
  std::vector<std::string_view> names;
  for (const WireNumber& number : loss.numbers) names.push_back(number.name);
  for (const auto& [name, value] : config) {
    if (std::ranges::find(names, name) == names.end())
      return error(Code::kInvalid, "loss '{}' has no number '{}'", loss.name, name)
          .note(names.empty()
                    ? fmt::format("'{}' is used without any", loss.name)
                    : fmt::format("numbers of '{}': {}", loss.name, fmt::join(names, ", ")));
    if (!std::isfinite(value) || value < 0)
      return error(Code::kInvalid, "'{}' of loss '{}' is {}, it must be 0 or above", name,
                   loss.name, value);
  }
  std::vector<double> values;
  for (const WireNumber& number : loss.numbers) {
    const auto found = config.find(std::string(number.name));
    values.push_back(found == config.end() ? number.value : found->second);
  }
  return values;
}

Status check_numbers(std::string_view name, const std::vector<float>& values, float least,
                     float most) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]) || values[i] < least || values[i] > most)
      return error(Code::kInvalid, "{}[{}] is {}, not in [{}, {}]", name, i, values[i], least,
                   most);
  return ok();
}

Status check_ids(std::string_view name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return error(Code::kInvalid, "{}[{}] is {}, outside the vocabulary of {}", name, i, ids[i],
                   vocab_size);
  return ok();
}

Status check_positions(const LossDatum& datum) {
  if (datum.positions.empty()) {
    if (datum.targets.size() == datum.tokens.size()) return ok();
    return error(Code::kInvalid, "{} tokens, but {} targets", datum.tokens.size(),
                 datum.targets.size())
        .note("other numbers of targets need the position of each");
  }
  if (datum.positions.size() != datum.targets.size())
    return error(Code::kInvalid, "{} targets, but {} positions", datum.targets.size(),
                 datum.positions.size());
  for (size_t i = 0; i < datum.positions.size(); ++i) {
    const int32_t position = datum.positions[i];
    if (position < 0 || position >= std::ssize(datum.tokens))
      return error(Code::kInvalid, "positions[{}] is {}, not in [0, {})", i, position,
                   datum.tokens.size());
    if (i > 0 && position < datum.positions[i - 1])
      return error(Code::kInvalid, "positions[{}] is {}, after {}: positions rise", i, position,
                   datum.positions[i - 1]);
  }
  return ok();
}

Status check_datum_sizes(const LossDatum& datum, const SampleLimits& limits) {
  const int64_t num_tokens = std::ssize(datum.tokens), num_targets = std::ssize(datum.targets);
  if (num_tokens == 0) return error(Code::kInvalid, "it has no tokens");
  if (num_tokens > limits.max_sequence_tokens)
    return error(Code::kInvalid, "{} tokens are more than the learner's limit of {}", num_tokens,
                 limits.max_sequence_tokens);
  if (num_targets > kTargetsPerTokenMax * num_tokens)
    return error(Code::kInvalid, "{} targets for {} tokens are more than {} for each", num_targets,
                 num_tokens, kTargetsPerTokenMax);
  return check_positions(datum);
}

Status check_datum(const LossDatum& datum, bool is_policy, const SampleLimits& limits) {
  RETURN_IF_ERROR(check_datum_sizes(datum, limits));
  const size_t num_targets = datum.targets.size();
  if (!datum.weights.empty() && datum.weights.size() != num_targets)
    return error(Code::kInvalid, "{} targets, but {} weights", num_targets, datum.weights.size());
  for (const auto& [name, values] :
       {std::pair{"logprobs", &datum.logprobs}, std::pair{"advantages", &datum.advantages}}) {
    if (values->size() != (is_policy ? num_targets : 0))
      return is_policy
                 ? error(Code::kInvalid, "{} targets, but {} {}", num_targets, values->size(), name)
                 : error(Code::kInvalid, "cross_entropy reads no {}", name);
  }
  RETURN_IF_ERROR(check_ids("tokens", datum.tokens, limits.vocab_size));
  RETURN_IF_ERROR(check_ids("targets", datum.targets, limits.vocab_size));
  constexpr float kMost = std::numeric_limits<float>::max();
  RETURN_IF_ERROR(check_numbers("weights", datum.weights, -kMost, kMost));
  RETURN_IF_ERROR(check_numbers("advantages", datum.advantages, -kMost, kMost));
  return check_numbers("logprobs", datum.logprobs, kLogprobMin, kLogprobMax);
}

}  // namespace

void LossTotals::add(const LossTotals& other) {
  loss += other.loss;
  entropy += other.entropy;
  mismatch_kl += other.mismatch_kl;
  num_trained += other.num_trained;
  num_masked += other.num_masked;
  num_capped += other.num_capped;
  num_targets += other.num_targets;
  num_tokens += other.num_tokens;
}

Status validate(const AdamNumbers& adam) {
  const std::pair<const char*, double> sizes[] = {{"learning rate", adam.lr},
                                                  {"weight decay", adam.weight_decay},
                                                  {"clip norm", adam.max_norm}};
  for (const auto& [name, value] : sizes)
    if (!std::isfinite(value) || value < 0)
      return error(Code::kInvalid, "the {} is {}, it must be 0 or above", name, value);
  for (const auto& [name, value] : {std::pair{"beta1", adam.beta1}, std::pair{"beta2", adam.beta2}})
    if (!(value >= 0 && value < 1))
      return error(Code::kInvalid, "{} is {}, not in [0, 1)", name, value);
  if (!std::isfinite(adam.epsilon) || !(static_cast<float>(adam.epsilon) > 0))
    return error(Code::kInvalid, "epsilon is {}, it must be above 0 in fp32", adam.epsilon);
  return ok();
}

Status check_adam(const AdamNumbers& adam, const OptimizerOptions& optimizer) {
  if (optimizer.kind != "adamw")
    return error(Code::kInvalid, "the tenant's optimizer is '{}', which has no Adam step",
                 optimizer.kind)
        .note("a client's tenant needs optimizer.kind = \"adamw\"");
  return validate(adam);
}

Result<LossOptions> tinker_loss(std::string_view name,
                                const std::map<std::string, double>& config) {
  const auto found = std::ranges::find(wire_losses(), name, &WireLoss::name);
  if (found == wire_losses().end()) return unknown_loss(name);
  ASSIGN_OR_RETURN(const auto numbers, numbers_of(*found, config));
  LossOptions loss;
  loss.kind = name;
  if (name == "ppo") {
    if (numbers[0] > 1 || numbers[1] < 1)
      return error(Code::kInvalid, "loss 'ppo' clips the ratio to [{}, {}], which lacks 1",
                   numbers[0], numbers[1]);
    loss.clip_low = 1 - numbers[0];
    loss.clip_high = numbers[1] - 1;
  } else if (name == "cispo") {
    loss.weight_low = numbers[0];
    loss.weight_high = numbers[1];
  } else if (name == "dro") {
    loss.kl_weight = numbers[0] / 2;
  }
  RETURN_IF_ERROR(check_client_loss(loss));
  return loss;
}

Status check_client_loss(const LossOptions& loss) {
  RETURN_IF_ERROR(validate(loss));
  const Objective objective = objective_of(loss);
  const auto refuse = [&](std::string_view what) -> Status {
    return error(Code::kInvalid, "loss '{}' needs {}", loss.kind, what)
        .note("a client's loss is a sum over targets, each by itself");
  };
  if (objective.needs_measured()) return refuse("the log-probabilities of all tokens of a step");
  if (objective.needs_reference() || objective.rule == ObjectiveRule::kDistillation)
    return refuse("a reference model");
  if (objective.rule == ObjectiveRule::kTopK) return refuse("the likeliest tokens of a teacher");
  if (objective.mean != LossMean::kToken) return refuse("the length of each sequence");
  return ok();
}

Status check_loss_batch(const LossBatch& batch, const SampleLimits& limits) {
  RETURN_IF_ERROR(check_client_loss(batch.loss));
  if (batch.data.empty()) return error(Code::kInvalid, "the batch has no data");
  const bool is_policy = find_objective(batch.loss.kind, batch.loss.own)->uses_logprobs();
  for (size_t i = 0; i < batch.data.size(); ++i) {
    const Status status = check_datum(batch.data[i], is_policy, limits);
    if (!status.ok()) return Error(status.error()).while_doing(fmt::format("datum {}", i));
  }
  return ok();
}

int64_t num_rows(const LossDatum& datum) {
  return datum.positions.empty() ? std::ssize(datum.tokens) : int64_t{datum.positions.back()} + 1;
}

}  // namespace primerl
