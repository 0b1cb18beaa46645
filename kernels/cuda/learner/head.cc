#include "kernels/cuda/learner/head.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/common/step_report.h"
#include "kernels/cuda/learner/attention.h"
#include "kernels/train/top_k.h"

namespace primerl {
namespace {

constexpr int64_t kTargetsOfChunk = 1024;
constexpr size_t kKeptIdsMax = size_t{1} << 23;  // copied at a time
constexpr double kExcludedLogit = -1e30;         // a logit with weight 0 and gradient 0

/// The number of leading targets that fit in one chunk.
size_t chunk_size(std::span<const TrainTarget> targets) {
  size_t count = 1;
  while (count < targets.size() && count < static_cast<size_t>(kTargetsOfChunk) &&
         targets[count].inverse_temperature == targets[0].inverse_temperature)
    ++count;
  return count;
}

/// The first of a teacher's tokens that the model has; 0: it has none.
int32_t first_known(std::span<const int32_t> tokens, int32_t vocab_size) {
  const auto found = std::ranges::find_if(tokens, [&](int32_t id) { return id < vocab_size; });
  return found == tokens.end() ? 0 : *found;
}

}  // namespace

CudaTrainingHead::CudaTrainingHead(const ModelConfig& config, const CudaParameters& parameters,
                                   at::ScalarType type, LearnerAdapters* adapters,
                                   const CudaStream& stream)
    : config_(config),
      stream_(stream),
      type_(type),
      adapters_(adapters),
      head_(parameters(config.is_tied ? "embedding" : "head")) {}

double CudaTrainingHead::bytes_needed(const ModelConfig& config, at::ScalarType type) {
  const double of_logit = type == at::kFloat ? 4 : 6;  // bf16 gradients beside the fp32 logits
  return kTargetsOfChunk * (of_logit * config.vocab_size + 8.0 * config.hidden_size);
}

void CudaTrainingHead::begin(std::span<const TrainTarget> targets,
                             std::span<const LearnedPart> parts) {
  sort(targets, parts);
  chunks_.clear();
  std::vector<int32_t> all, rows;
  const auto add = [&](const std::vector<int32_t>& values) {
    const auto offset = std::ssize(all);
    all.insert(all.end(), values.begin(), values.end());
    return offset;
  };
  for (size_t first = 0; first < targets_.size();) {
    const auto some = std::span(targets_).subspan(first);
    const size_t count = chunk_size(some);
    Chunk& chunk = chunks_.emplace_back();
    chunk.first = static_cast<int64_t>(first);
    chunk.count = static_cast<int64_t>(count);
    rows.clear();
    std::vector<int32_t> labels, one_hot;
    for (size_t i = 0; i < count; ++i) {
      const TrainTarget& target = some[i];
      rows.push_back(target.row);
      labels.push_back(target.label);
      const bool is_top = !part_of_.empty() && is_top_k(chunk, i);
      one_hot.push_back(is_top ? first_known(target.top_tokens, config_.vocab_size) : target.label);
    }
    if (head_.adapters != nullptr) chunk.picked = adapters_->pick(rows);
    // Samples that share a prompt share the row that predicts their first tokens.
    const GroupedIndices grouped = group_indices(rows);
    chunk.rows = add(rows);
    chunk.labels = add(labels);
    chunk.one_hot = one_hot == labels ? chunk.labels : add(one_hot);
    chunk.sums = add(grouped.all);
    chunk.num_ids = grouped.num_ids;
    first += count;
  }
  ints_ = stream_.ints(all);
  if (!coefficients_.defined())
    coefficients_ =
        at::empty({kTargetsOfChunk}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
}

void CudaTrainingHead::sort(std::span<const TrainTarget> targets,
                            std::span<const LearnedPart> parts) {
  parts_.assign(parts.begin(), parts.end());
  std::vector<const LearnedPart*> part_of;
  for (const LearnedPart& part : parts_) part_of.insert(part_of.end(), part.count, &part);
  order_.resize(targets.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  const auto slot_of = [&](int32_t row) {
    return head_.adapters == nullptr ? int64_t{0} : adapters_->slot_of(row);
  };
  std::ranges::stable_sort(order_, {}, [&](size_t i) {
    return std::pair(targets[i].inverse_temperature, slot_of(targets[i].row));
  });
  targets_.clear();
  part_of_.clear();
  for (const size_t i : order_) {
    targets_.push_back(targets[i]);
    if (!part_of.empty()) part_of_.push_back(part_of[i]);
  }
}

Result<CudaTrainingHead::Logits> CudaTrainingHead::logits_of(const Chunk& chunk,
                                                             const at::Tensor& normed,
                                                             const at::Tensor& scratch) const {
  const auto on_cuda = at::TensorOptions(stream_.device());
  const int64_t bytes = chunk.count * config_.vocab_size * int64_t{sizeof(float)};
  Logits made;
  made.picked = at::empty({chunk.count, config_.hidden_size}, on_cuda.dtype(type_));
  made.logits =
      scratch.defined() && scratch.numel() >= bytes
          ? scratch.narrow(0, 0, bytes).view(at::kFloat).view({chunk.count, config_.vocab_size})
          : at::empty({chunk.count, config_.vocab_size}, on_cuda.dtype(at::kFloat));
  made.numbers = at::empty({3, chunk.count}, on_cuda.dtype(at::kFloat));
  RETURN_IF_ERROR(launched(cuda::gather_rows({.rows = chunk.count,
                                              .width = config_.hidden_size,
                                              .type = op_type(type_),
                                              .x = normed.const_data_ptr(),
                                              .sources = ints(chunk.rows),
                                              .y = made.picked.mutable_data_ptr()},
                                             stream_.raw()),
                           "rows with a loss"));
  if (type_ == at::kFloat)
    at::mm_out(made.logits, made.picked, head_.weight.t());
  else
    at::mm_out(made.logits, made.picked, head_.weight.t(), at::kFloat);
  if (head_.adapters != nullptr)
    adapters_->forward(*head_.adapters, chunk.picked, made.picked, made.logits);
  return made;
}

/// A few targets at a time: a kept set may have the whole vocabulary.
void CudaTrainingHead::cut(const Chunk& chunk, const at::Tensor& logits) const {
  const auto targets = targets_of(chunk);
  const int64_t vocab = config_.vocab_size;
  at::Tensor flat = logits.view({-1});
  std::vector<int32_t> ids;
  std::vector<int64_t> indices, rows;
  const auto exclude = [&] {
    if (rows.empty()) return;
    const auto on_device = [&](std::vector<int64_t>& values) {
      return at::from_blob(values.data(), {std::ssize(values)}, at::kLong).to(stream_.device());
    };
    const at::Tensor at_indices = on_device(indices), at_rows = on_device(rows);
    const at::Tensor kept = flat.index_select(0, at_indices);
    at::Tensor all = logits;
    all.index_fill_(0, at_rows, kExcludedLogit);
    flat.index_copy_(0, at_indices, kept);
    indices.clear();
    rows.clear();
  };
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].kept.keeps_all()) continue;
    targets[i].kept.list(ids);
    const auto row = static_cast<int64_t>(i);
    rows.push_back(row);
    for (const int32_t id : ids) indices.push_back(row * vocab + id);
    if (indices.size() >= kKeptIdsMax) exclude();
  }
  exclude();
}

Status CudaTrainingHead::softmax(const Chunk& chunk, const Logits& made) const {
  auto* numbers = made.numbers.mutable_data_ptr<float>();
  return launched(
      cuda::cross_entropy({.rows = chunk.count,
                           .vocab_size = config_.vocab_size,
                           .row_stride = config_.vocab_size,
                           .inverse_temperature = targets_of(chunk).front().inverse_temperature,
                           .type = cuda::Type::kFloat32,
                           .logits = made.logits.mutable_data_ptr(),
                           .labels = ints(chunk.labels),
                           .logprobs = numbers,
                           .entropies = numbers + chunk.count,
                           .log_normalizers = numbers + 2 * chunk.count},
                          stream_.raw()),
      "cross_entropy");
}

/// A second pass finds the normalizer of the other tokens: their sum is then as exact as on the
/// CPU, also where they are few.
Status CudaTrainingHead::exclude_top(const Chunk& chunk, const Logits& made, TopK& top,
                                     HostNumbers& to) const {
  const auto targets = targets_of(chunk);
  const int64_t vocab = config_.vocab_size;
  bool has_top = false;
  top.first.assign(1, 0);
  for (size_t i = 0; i < targets.size(); ++i) {
    has_top = has_top || is_top_k(chunk, i);
    if (is_top_k(chunk, i))
      for (const int32_t token : targets[i].top_tokens)
        if (token < vocab) top.at.push_back(static_cast<int64_t>(i) * vocab + token);
    top.first.push_back(top.at.size());
  }
  if (!has_top) return ok();
  top.gradients = at::zeros({std::ssize(top.at)}, at::TensorOptions().dtype(at::kFloat));
  if (top.at.empty()) return ok();
  top.on_device = stream_.values(std::span<const int64_t>(top.at)).view(at::kLong).view({-1});
  const at::Tensor flat = made.logits.view({-1});
  const at::Tensor of_top = flat.index_select(0, top.on_device);
  at::Tensor all = flat;
  all.index_fill_(0, top.on_device, kExcludedLogit);
  const Logits others{made.picked, made.logits,
                      at::empty(made.numbers.sizes(), made.numbers.options())};
  RETURN_IF_ERROR(softmax(chunk, others));
  to.top = of_top.cpu();
  to.rests = others.numbers.select(0, 2).cpu();
  return ok();
}

/// TrainingHead::learn_top_k(): other tokens get their probability times one factor, which is what
/// the gradient of a cross-entropy gives them.
TokenLoss CudaTrainingHead::learn_top_k(const Chunk& chunk, size_t i, const HostNumbers& numbers,
                                        TopK& top) {
  const TrainTarget& target = targets_of(chunk)[i];
  const LearnedPart& part = *part_of_[static_cast<size_t>(chunk.first) + i];
  const auto index = static_cast<int64_t>(i);
  const double scale = static_cast<double>(target.inverse_temperature);
  const float* all = numbers.numbers.const_data_ptr<float>();
  TokenLoss token = target_loss(target, all[index], part);
  auto* coefficients = coefficients_.mutable_data_ptr<float>();
  coefficients[index] = 0;
  const size_t first = top.first[i], count = top.first[i + 1] - first;
  if (count == 0) return token;  // one bucket: nothing to learn
  const auto normalizer = static_cast<double>(all[2 * chunk.count + index]);
  std::vector<float> teacher;
  std::vector<double> learner, gradients(count);
  for (size_t j = 0; j < target.top_tokens.size(); ++j)
    if (target.top_tokens[j] < config_.vocab_size) teacher.push_back(target.top_logprobs[j]);
  for (size_t j = 0; j < count; ++j)
    learner.push_back(static_cast<double>(numbers.top.const_data_ptr<float>()[first + j]) * scale -
                      normalizer);
  const bool has_rest = std::cmp_less(count, config_.vocab_size);
  const auto of_rest = static_cast<double>(numbers.rests.const_data_ptr<float>()[index]);
  const TopKRest rest{has_rest ? std::exp(of_rest - normalizer) : 0, has_rest};
  const TopKLoss made = top_k_loss(part.objective->jsd_beta, teacher, learner, rest, gradients);
  double sum = made.rest_gradient;
  for (const double gradient : gradients) sum += gradient;
  const double per_token = target.weight * part.per_token;
  const double of_others = made.rest_gradient == 0 ? 0 : made.rest_gradient / rest.learner;
  // The gradient of a cross-entropy is -coefficient * scale * probability.
  coefficients[index] = static_cast<float>(per_token * (sum - of_others));
  float* to = top.gradients.mutable_data_ptr<float>() + first;
  for (size_t j = 0; j < count; ++j)
    to[j] = static_cast<float>(per_token * scale * (gradients[j] - std::exp(learner[j]) * sum));
  token.loss = target.weight * made.loss;
  token.teacher_kl = made.kl;
  token.teacher_mass = made.mass;
  return token;
}

Status CudaTrainingHead::backward(const Chunk& chunk, const Logits& made, const TopK& top,
                                  const at::Tensor& dnormed) const {
  const bool is_rounded = type_ != at::kFloat;
  const at::Tensor scales = at::empty({chunk.count}, made.numbers.options());
  RETURN_IF_ERROR(stream_.copy(scales.mutable_data_ptr(), coefficients_.const_data_ptr(),
                               static_cast<size_t>(chunk.count) * sizeof(float)));
  const at::Tensor grads =
      is_rounded ? at::empty(made.logits.sizes(), made.logits.options().dtype(type_)) : made.logits;
  RETURN_IF_ERROR(
      launched(cuda::cross_entropy_backward(
                   {.rows = chunk.count,
                    .vocab_size = config_.vocab_size,
                    .row_stride = config_.vocab_size,
                    .inverse_temperature = targets_of(chunk).front().inverse_temperature,
                    .type = cuda::Type::kFloat32,
                    .labels = ints(chunk.one_hot),
                    .coefficients = scales.const_data_ptr<float>(),
                    .log_normalizers = made.numbers.select(0, 2).const_data_ptr<float>(),
                    .logits = made.logits.mutable_data_ptr(),
                    .bf16_gradients = is_rounded ? grads.mutable_data_ptr() : nullptr},
                   stream_.raw()),
               "cross_entropy_backward"));
  if (!top.at.empty()) {
    at::Tensor flat = grads.view({-1});
    flat.index_copy_(0, top.on_device, top.gradients.to(flat.options()));
  }
  at::Tensor gradient = head_.gradient;
  if (gradient.defined() && is_rounded)
    at::addmm_out(gradient, gradient, grads.t(), made.picked, at::kFloat);
  else if (gradient.defined())
    at::addmm_out(gradient, gradient, grads.t(), made.picked);
  const at::Tensor dpicked = at::mm(grads, head_.weight);
  if (head_.adapters != nullptr)
    adapters_->backward(*head_.adapters, chunk.picked, made.picked, grads, dpicked);
  const int32_t* ids = ints(chunk.sums);
  return launched(cuda::embedding_backward({.num_ids = chunk.num_ids,
                                            .width = config_.hidden_size,
                                            .type = op_type(type_),
                                            .ids = ids,
                                            .offsets = ids + chunk.num_ids,
                                            .row_indices = ids + 2 * chunk.num_ids + 1,
                                            .dy = dpicked.const_data_ptr(),
                                            .dtable = dnormed.mutable_data_ptr<float>()},
                                           stream_.raw()),
                  "gradients of rows with a loss");
}

Status CudaTrainingHead::learn(const at::Tensor& normed, const at::Tensor& dnormed,
                               const at::Tensor& scratch) {
  auto* coefficients = coefficients_.mutable_data_ptr<float>();
  for (const Chunk& chunk : chunks_) {
    const auto targets = targets_of(chunk);
    ASSIGN_OR_RETURN(const Logits made, logits_of(chunk, normed, scratch));
    cut(chunk, made.logits);
    RETURN_IF_ERROR(softmax(chunk, made));
    TopK top;
    HostNumbers on_host;
    RETURN_IF_ERROR(exclude_top(chunk, made, top, on_host));
    on_host.numbers = made.numbers.cpu();  // waits
    const float* logprobs = on_host.numbers.const_data_ptr<float>();
    const float* entropies = logprobs + chunk.count;
    for (size_t i = 0; i < targets.size(); ++i) {
      const LearnedPart& part = *part_of_[static_cast<size_t>(chunk.first) + i];
      const bool is_top = is_top_k(chunk, i);
      const TokenLoss token = is_top ? learn_top_k(chunk, i, on_host, top)
                                     : target_loss(targets[i], logprobs[i], part);
      if (!is_top) coefficients[i] = static_cast<float>(token.gradient * part.per_token);
      add_token(targets[i], token, logprobs[i], entropies[i], part);
    }
    RETURN_IF_ERROR(backward(chunk, made, top, dnormed));
  }
  return ok();
}

Status CudaTrainingHead::score(const at::Tensor& normed, std::vector<float>& logprobs) {
  logprobs.resize(order_.size());
  for (const Chunk& chunk : chunks_) {
    ASSIGN_OR_RETURN(const Logits made, logits_of(chunk, normed, {}));
    cut(chunk, made.logits);
    RETURN_IF_ERROR(softmax(chunk, made));
    const at::Tensor numbers = made.numbers.cpu();
    const float* data = numbers.const_data_ptr<float>();
    for (int64_t i = 0; i < chunk.count; ++i)
      logprobs[order_[static_cast<size_t>(chunk.first + i)]] = data[i];
  }
  return ok();
}

}  // namespace primerl
