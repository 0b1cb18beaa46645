#include "kernels/train/packing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "graph/base/random.h"
#include "kernels/train/top_k.h"

namespace primerl {
namespace {

constexpr int64_t kRowsPerPromptRow = 8;  // rows of a unit per prompt row, before its prompt is
                                          // computed again

/// Samples with one prompt, which one micro-batch runs together.
struct Unit {
  int32_t num_prompt_tokens = 0;
  int32_t num_rows = 0;
  std::vector<size_t> samples;
};

/// The number of tokens before the first loss token. The first row of a document is always shared
/// context.
int32_t prompt_length(const TrainSample& sample) {
  const auto& mask = sample.loss_mask;
  const auto first = std::find(mask.begin() + (mask.empty() ? 0 : 1), mask.end(), 1);
  return static_cast<int32_t>(first - mask.begin());
}

std::vector<Unit> make_units(std::span<const TrainSample> samples, int32_t rows_max,
                             int32_t rows_wanted) {
  std::vector<Unit> units;
  std::map<std::vector<int32_t>, size_t> open;  // prompt -> the unit that has free space
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto& tokens = samples[i].tokens;
    const int32_t length = static_cast<int32_t>(tokens.size());
    const int32_t prompt = prompt_length(samples[i]);
    if (prompt >= length) continue;  // nothing to learn
    // The last token is not an input: no token is predicted from it.
    const int32_t own_rows = length - 1 - prompt;
    std::vector<int32_t> key(tokens.begin(), tokens.begin() + prompt);
    auto found = open.find(key);
    const int64_t most =
        std::min<int64_t>(rows_max, std::max(int64_t{rows_wanted}, kRowsPerPromptRow * prompt));
    if (found == open.end() || units[found->second].num_rows + own_rows > most) {
      units.push_back({prompt, prompt, {}});
      found = open.insert_or_assign(std::move(key), units.size() - 1).first;
    }
    units[found->second].num_rows += own_rows;
    units[found->second].samples.push_back(i);
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.num_rows > b.num_rows; });
  return units;
}

/// The random key of a prompt's rows; the same for every sample that shares the prompt.
uint64_t draws_of_prompt(const TrainSample& sample, int32_t num_tokens) {
  uint64_t hash = stable_hash("prompt");
  for (int32_t i = 0; i < num_tokens; ++i)
    hash = mix(hash, static_cast<uint64_t>(sample.tokens[static_cast<size_t>(i)]));
  return hash;
}

/// Appends the rows [begin, end) of a sequence as a span that first attends to `begin` shared rows,
/// from `shared_row` on.
void add_rows(RowBatch& rows, std::span<const int32_t> tokens, int32_t begin, int32_t end,
              int32_t shared_row, uint64_t draws) {
  const int32_t first = static_cast<int32_t>(rows.num_rows());
  rows.spans.push_back({first, end - begin, begin, static_cast<int32_t>(rows.kv_blocks.size())});
  for (int32_t i = 0; i < begin; ++i) rows.kv_blocks.push_back(shared_row + i);
  for (int32_t i = begin; i < end; ++i) {
    const int32_t row = first + i - begin;
    rows.tokens.push_back(tokens[static_cast<size_t>(i)]);
    rows.positions.push_back(i);
    rows.draws.push_back(mix(draws, static_cast<uint64_t>(i)));
    rows.cache_rows.push_back(row);
    rows.kv_blocks.push_back(row);
  }
}

void add_targets(MicroBatch& batch, const TrainSample& sample, size_t index, int32_t prompt,
                 int32_t prompt_row, int32_t own_row) {
  KeptReader kept(sample.kept.bytes());
  const auto next_kept = [&] { return kept.is_at_end() ? KeptSet() : kept.next().value(); };
  const size_t k = top_k_of(sample);
  size_t top = 0;  // of the next loss token
  if (prompt > 0 && sample.loss_mask[0] != 0) {
    next_kept();
    top += k;
  }
  for (size_t i = static_cast<size_t>(prompt); i < sample.tokens.size(); ++i) {
    if (sample.loss_mask[i] == 0) continue;
    const int32_t before = static_cast<int32_t>(i) - 1;
    TrainTarget target;
    target.row = before < prompt ? prompt_row + before : own_row + before - prompt;
    target.label = sample.tokens[i];
    if (!sample.logprobs.empty()) target.logprob = sample.logprobs[i];
    if (!sample.advantages.empty()) target.advantage = sample.advantages[i];
    target.inverse_temperature = 1.0F / sample.temperature;
    target.sample = static_cast<int32_t>(index);
    target.position = static_cast<int32_t>(i);
    if (!sample.distances.empty()) target.distance = sample.distances[i];
    if (!sample.proximal.empty()) target.proximal = sample.proximal[i];
    if (!sample.reference.empty()) target.reference = sample.reference[i];
    if (!sample.weights.empty()) target.weight = sample.weights[i];
    target.kept = next_kept();
    if (!sample.top_tokens.empty()) {
      target.top_tokens = std::span(sample.top_tokens).subspan(top, k);
      target.top_logprobs = std::span(sample.top_logprobs).subspan(top, k);
      top += k;
    }
    batch.targets.push_back(target);
  }
}

void add_unit(MicroBatch& batch, std::span<const TrainSample> samples, const Unit& unit) {
  const int32_t prompt_row = static_cast<int32_t>(batch.rows.num_rows());
  const TrainSample& first = samples[unit.samples.front()];
  add_rows(batch.rows, first.tokens, 0, unit.num_prompt_tokens, 0,
           draws_of_prompt(first, unit.num_prompt_tokens));
  for (const size_t i : unit.samples) {
    const int32_t own_row = static_cast<int32_t>(batch.rows.num_rows());
    const int32_t end = static_cast<int32_t>(samples[i].tokens.size()) - 1;
    if (end > unit.num_prompt_tokens)
      add_rows(batch.rows, samples[i].tokens, unit.num_prompt_tokens, end, prompt_row, i);
    add_targets(batch, samples[i], i, unit.num_prompt_tokens, prompt_row, own_row);
  }
}

void add_datum(MicroBatch& batch, const LossDatum& datum, size_t index, uint64_t draws) {
  const auto first = static_cast<int32_t>(batch.rows.num_rows());
  add_rows(batch.rows, datum.tokens, 0, static_cast<int32_t>(num_rows(datum)), 0, draws);
  for (size_t i = 0; i < datum.targets.size(); ++i) {
    TrainTarget target;
    target.row = first + (datum.positions.empty() ? static_cast<int32_t>(i) : datum.positions[i]);
    target.label = datum.targets[i];
    if (!datum.logprobs.empty()) target.logprob = datum.logprobs[i];
    if (!datum.advantages.empty()) target.advantage = datum.advantages[i];
    if (!datum.weights.empty()) target.weight = datum.weights[i];
    target.sample = static_cast<int32_t>(index);
    target.position = static_cast<int32_t>(i);
    batch.targets.push_back(target);
  }
}

/// Its rows, its loss tokens, and the keys that its queries read: a sample's own rows also read the
/// prompt.
double cost_of(std::span<const TrainSample> samples, const Unit& unit, const RowCosts& costs) {
  const auto pairs = [](double queries, double before) {
    return queries * before + queries * (queries + 1) / 2;
  };
  const double prompt = unit.num_prompt_tokens;
  double read = pairs(prompt, 0), targets = 0;
  for (const size_t i : unit.samples) {
    const TrainSample& sample = samples[i];
    read += pairs(static_cast<double>(sample.tokens.size()) - 1 - prompt, prompt);
    targets += static_cast<double>(
        std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), uint8_t{1}));
  }
  return costs.per_row * unit.num_rows + costs.per_target * targets + costs.per_pair * read;
}

/// Checks that its kept sets belong exactly to its loss tokens; having none is valid.
Status check_kept_sets(const TrainSample& sample, int32_t vocab_size) {
  if (sample.kept.empty()) return ok();
  std::vector<int32_t> drawn;
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    if (sample.loss_mask[i] != 0) drawn.push_back(sample.tokens[i]);
  return check_kept(sample.kept.bytes(), drawn, vocab_size);
}

/// A loss token with weight 0 would count in the mean of the step and not train.
Status check_weights(const TrainSample& sample) {
  if (!sample.weights.empty() && sample.weights.size() != sample.tokens.size())
    return error(Code::kInvalid, "{} tokens, but {} weights", sample.tokens.size(),
                 sample.weights.size());
  for (size_t i = 0; i < sample.weights.size(); ++i)
    if (const float weight = sample.weights[i];
        sample.loss_mask[i] != 0 && !(weight > 0 && weight <= kTokenWeightMax))
      return error(Code::kInvalid, "the weight of token {} is {}, not above 0 and at most {}", i,
                   weight, kTokenWeightMax);
  return ok();
}

/// The loss over a teacher's likeliest tokens needs them and the whole distribution of the policy.
Status check_teacher_tokens(const TrainSample& sample, LossKind loss) {
  if (loss == LossKind::kTopK && !sample.kept.empty())
    return error(Code::kInvalid,
                 "it has kept sets, but the teacher's top tokens are of the whole distribution");
  if (loss == LossKind::kTopK) return check_top_k(sample);
  if (sample.top_tokens.empty() && sample.top_logprobs.empty()) return ok();
  return error(Code::kInvalid, "it has top tokens of a teacher, which only 'gkd' reads");
}

}  // namespace

void MicroBatch::append(const MicroBatch& other, int32_t adapter) {
  const auto first = static_cast<int32_t>(rows.num_rows());
  const auto first_key = static_cast<int32_t>(rows.kv_blocks.size());
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const auto add_shifted = [first](auto& to, const auto& from) {
    for (const int32_t row : from) to.push_back(first + row);
  };
  add(rows.tokens, other.rows.tokens);
  add(rows.positions, other.rows.positions);
  add(rows.draws, other.rows.draws);
  add_shifted(rows.cache_rows, other.rows.cache_rows);
  add_shifted(rows.kv_blocks, other.rows.kv_blocks);
  for (auto span : other.rows.spans) {
    span.query_begin += first;
    span.kv_offset += first_key;
    span.adapter = adapter;
    rows.spans.push_back(span);
  }
  for (auto target : other.targets) {
    target.row += first;
    targets.push_back(target);
  }
}

std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max,
                             int32_t rows_wanted) {
  return std::move(pack_for_ranks(samples, rows_max, rows_wanted, {}, 1).front());
}

std::vector<MicroBatch> pack(std::span<const LossDatum> data, int32_t rows_wanted,
                             uint64_t first_draws) {
  std::vector<size_t> order;
  for (size_t i = 0; i < data.size(); ++i) order.push_back(i);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) { return num_rows(data[i]); });
  std::vector<Document> documents;
  for (const size_t i : order) documents.push_back({num_rows(data[i]), 0});
  std::vector<MicroBatch> batches;
  for (const MicroBatchPlan& bin : first_fit(documents, rows_wanted)) {
    MicroBatch& batch = batches.emplace_back();
    for (const size_t document : bin) {
      const size_t i = order[document];
      add_datum(batch, data[i], i, first_draws + i);
    }
  }
  return batches;
}

std::vector<std::vector<MicroBatch>> pack_for_ranks(std::span<const TrainSample> samples,
                                                    int32_t rows_max, int32_t rows_wanted,
                                                    const RowCosts& costs, int32_t ranks) {
  const auto units = make_units(samples, rows_max, rows_wanted);
  std::vector<Document> documents;
  for (const Unit& unit : units)
    documents.push_back({unit.num_rows, ranks > 1 ? cost_of(samples, unit, costs) : 0});
  std::vector<std::vector<MicroBatch>> all;
  for (const RankPlan& plan : share_over_ranks(documents, rows_wanted, ranks)) {
    auto& batches = all.emplace_back();
    for (const MicroBatchPlan& bin : plan) {
      MicroBatch& batch = batches.emplace_back();
      for (const size_t unit : bin) add_unit(batch, samples, units[unit]);
      if (bin.empty()) batch = dummy_batch();
    }
  }
  return all;
}

MicroBatch dummy_batch() {
  MicroBatch dummy;
  dummy.rows.tokens = dummy.rows.positions = dummy.rows.cache_rows = dummy.rows.kv_blocks = {0};
  dummy.rows.draws = {0};
  dummy.rows.spans.push_back({0, 1, 0, 0});
  return dummy;
}

Status check_sample(const TrainSample& sample, LossKind loss, const SampleLimits& limits) {
  const size_t length = sample.tokens.size();
  const bool policy = loss == LossKind::kPolicy;
  const auto unequal = [&](size_t size) { return size != length && (policy || size != 0); };
  if (length == 0) return error(Code::kInvalid, "it has no tokens");
  if (sample.loss_mask.size() != length || unequal(sample.logprobs.size()) ||
      unequal(sample.advantages.size()))
    return error(Code::kInvalid, "{} tokens, but {} loss_mask, {} logprobs and {} advantages",
                 length, sample.loss_mask.size(), sample.logprobs.size(), sample.advantages.size());
  for (const auto& [name, stored] :
       {std::pair{"proximal", &sample.proximal}, std::pair{"reference", &sample.reference}}) {
    if (!stored->empty() && stored->size() != length)
      return error(Code::kInvalid, "{} tokens, but {} {} log-probabilities", length, stored->size(),
                   name);
    for (size_t i = 0; i < stored->size(); ++i)
      if (const float logprob = (*stored)[i]; !(logprob >= kLogprobMin && logprob <= kLogprobMax))
        return error(Code::kInvalid, "the {} log-probability of token {} is {}, not in [{}, {}]",
                     name, i, logprob, kLogprobMin, kLogprobMax);
  }
  RETURN_IF_ERROR(check_weights(sample));
  if (!sample.distances.empty() && sample.distances.size() != length)
    return error(Code::kInvalid, "{} tokens, but {} distances", length, sample.distances.size());
  if (length > static_cast<size_t>(limits.max_sequence_tokens))
    return error(Code::kInvalid, "{} tokens are more than the learner's limit of {}", length,
                 limits.max_sequence_tokens);
  for (const int32_t token : sample.tokens)
    if (token < 0 || token >= limits.vocab_size)
      return error(Code::kInvalid, "token {} is outside the vocabulary of {}", token,
                   limits.vocab_size);
  for (const uint8_t mask : sample.loss_mask)
    if (mask > 1) return error(Code::kInvalid, "its mask has a {}; valid values are 0 and 1", mask);
  for (size_t i = 0; i < sample.logprobs.size(); ++i)
    if (const float logprob = sample.logprobs[i];
        !(logprob >= kLogprobMin && logprob <= kLogprobMax))
      return error(Code::kInvalid, "the log-probability of token {} is {}, not in [{}, {}]", i,
                   logprob, kLogprobMin, kLogprobMax);
  for (const float advantage : sample.advantages)
    if (!std::isfinite(advantage)) return error(Code::kInvalid, "an advantage is {}", advantage);
  RETURN_IF_ERROR(check_teacher_tokens(sample, loss));
  if (!(sample.temperature > 0) || !std::isfinite(sample.temperature))
    return error(Code::kInvalid, "temperature {} is not above 0", sample.temperature)
        .note("greedy samples cannot be trained on");
  return check_kept_sets(sample, limits.vocab_size);
}

Status check_samples(const TrainBatch& batch, const SampleLimits& limits) {
  for (const TrainSample& sample : batch.samples)
    if (sample.proximal.empty() != batch.samples.front().proximal.empty() ||
        sample.reference.empty() != batch.samples.front().reference.empty())
      return error(Code::kInvalid,
                   "some samples of the batch have proximal or reference log-probabilities, and "
                   "others have none");
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    Status status = check_sample(batch.samples[i], batch.loss, limits);
    if (!status.ok()) return Error(status.error()).while_doing(fmt::format("sample {}", i));
  }
  return ok();
}

Result<TrainBatch> batch_to_score(const std::vector<int32_t>& tokens, const SampleLimits& limits) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = tokens;
  sample.loss_mask.assign(tokens.size(), 1);
  RETURN_IF_ERROR(check_samples(batch, limits));
  return batch;
}

}  // namespace primerl
