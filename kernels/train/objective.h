/// Objectives by name: which rule a policy is trained with, and its default numbers.
///
/// An objective is a rule for one token (loss.h), default numbers, a mean over the tokens of a step
/// and a default for the advantages of a group. Several names may have one rule: "grpo" and "dapo"
/// differ from "ppo" only in numbers, mean and advantage. docs/how-to/choose-an-objective.md has
/// the table for users. Plain values and pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "kernels/train/options.h"

namespace primerl {

/// The formula of a token's loss; loss.h has them.
enum class ObjectiveRule : uint8_t {
  kDppo,
  kIpo,
  kRatioClip,
  kSequenceClip,
  kWeightCap,
  kWeightBand,
  kDecoupled,
  kMoment,
  kCrossEntropy,
  kReferenceKl,
  kDistillation,
  kImportance,
  kRegularized,
  kTopK,
  kOwn  // of a plugin: ObjectiveSpec::own_loss
};

/// The step from losses of tokens to the loss of a batch.
enum class LossMean : uint8_t {
  kToken,     // every loss token counts the same
  kSequence,  // every sequence counts the same
  kConstant   // the sum of a sequence is divided by a constant, then every sequence counts the same
};

struct Objective;
struct TokenFacts;  // loss.h
struct TokenLoss;
/// The loss of one token, by a plugin. Called by any thread of a learner, several at once: it reads
/// its arguments alone. A value that is not finite makes the learner skip the step.
using OwnLoss = TokenLoss (*)(const Objective& objective, const TokenFacts& token);

/// One objective: of the catalog below, or of a plugin (docs/how-to/write-a-plugin.md).
struct ObjectiveSpec {
  struct Number {
    double LossOptions::*member;
    std::string_view name;
    double value = 0;  // its default
  };
  std::string_view name;
  ObjectiveRule rule = ObjectiveRule::kDppo;
  std::string_view doc;
  std::vector<Number> numbers = {};  // the options that it reads
  LossMean mean = LossMean::kToken;
  std::string_view advantage = "mean";  // advantage_kind() (advantage.h)
  OwnLoss own_loss = nullptr;           // for kOwn
  bool measures = false;                // for kOwn: it reads TokenFacts::sequence_log_ratio

  /// Whether rewards train: false for rules that learn from given answers or from a reference.
  bool uses_advantages() const;
  /// Whether tokens need the log-probability at which they were sampled.
  bool uses_logprobs() const {
    return rule != ObjectiveRule::kCrossEntropy && rule != ObjectiveRule::kTopK;
  }
};

std::span<const ObjectiveSpec> objectives();
/// Null if there is none of that name.
const ObjectiveSpec* find_objective(std::string_view name, const OwnObjectives& own = {});
std::vector<std::string> objective_names(const OwnObjectives& own = {});

/// An objective with all its numbers, as the losses read it.
struct Objective {
  ObjectiveRule rule = ObjectiveRule::kDppo;
  double clip_low = 0, clip_high = 0, clip_dual = 0;
  double weight_low = 0, weight_high = 0;
  double moment_max = 0, proximal_share = 0;
  double advantage_weight = 0, kl_weight = 0, reference_weight = 0, jsd_beta = 0;
  LossMean mean = LossMean::kToken;
  int64_t mean_tokens = 0;
  OwnLoss own_loss = nullptr;
  bool measures = false;

  /// Whether the losses need log-probabilities of the whole step before the first gradient: sums
  /// over sequences or over the step.
  bool needs_measured() const {
    return measures || rule == ObjectiveRule::kSequenceClip || rule == ObjectiveRule::kMoment;
  }
  bool needs_reference() const {
    return reference_weight > 0 || rule == ObjectiveRule::kReferenceKl;
  }
};

/// The objective of valid options. `mean_tokens`: what 0 in the options means.
Objective objective_of(const LossOptions& options);

/// Refuses an objective of a plugin that has no text, loss or known advantage, or a number that
/// LossOptions lacks or that is out of range. Its name is checked elsewhere.
Status check_own_objective(const ObjectiveSpec& spec);

/// Refuses unknown names, options that the objective does not read, and numbers out of range.
Status validate(const LossOptions& options);

}  // namespace primerl
