// Log-probabilities of prompts, and their likeliest tokens, of an engine on a CUDA device.
#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <tuple>

#include "kernels/cuda/engine/engine.h"

namespace primerl {

/// The rows of StepArrays::picked, with the adapters of their sequences.
Status CudaEngine::head_of_picked(int64_t count) {
  CudaAdapterRows adapters;
  at::Tensor tiles;
  if (decoder_.has_adapters_on_head()) {
    const std::span<const int32_t> rows(memory_.host().picked, static_cast<size_t>(count));
    const auto made = adapters_->tiles_of(step_.plan.rows, rows);
    if (!made.empty()) {
      tiles = stream_.values(std::span(made));
      adapters = {static_cast<const cuda::AdapterTile*>(tiles.const_data_ptr()), std::ssize(made)};
    }
  }
  return decoder_.head(count, memory_.device().picked, adapters);
}

/// Prompts may have more rows than the head can process at once.
Status CudaEngine::score() {
  std::span<const StepPlan::Score> left(step_.plan.scores);
  while (!left.empty()) {
    const auto some = left.first(std::min(left.size(), static_cast<size_t>(memory_.rows_max())));
    const auto count = std::ssize(some);
    for (size_t i = 0; i < some.size(); ++i) {
      memory_.host().picked[i] = some[i].row;
      memory_.host().labels[i] = some[i].token;
    }
    const at::Tensor normalizers = at::empty({count}, decoder_.logits().options());
    RETURN_IF_ERROR(memory_.upload());
    RETURN_IF_ERROR(head_of_picked(count));
    RETURN_IF_ERROR(
        memory_.score(count, decoder_.logits(), normalizers.mutable_data_ptr<float>()));
    RETURN_IF_ERROR(memory_.download(count, false));
    const Likeliest top = likeliest(some, normalizers);
    RETURN_IF_ERROR(memory_.wait(memory_.buffer_index()));
    const auto logprobs = memory_.logprobs(memory_.buffer_index());
    for (size_t i = 0; i < some.size(); ++i)
      scheduler_.accept(some[i], logprobs[i], top_of(some[i], static_cast<int64_t>(i), top));
    left = left.subspan(some.size());
  }
  return ok();
}

/// One more than is wanted, to see equals at the end of a row.
CudaEngine::Likeliest CudaEngine::likeliest(std::span<const StepPlan::Score> scores,
                                            const at::Tensor& normalizers) const {
  int64_t most = 0;
  for (const auto& score : scores)
    most = std::max<int64_t>(most, score.prefill->num_prompt_top);
  if (most == 0) return {};
  const at::Tensor rows = decoder_.logits().narrow(0, 0, std::ssize(scores));
  const auto [logits, ids] = at::topk(rows, std::min<int64_t>(most + 1, rows.size(1)));
  return {logits.cpu(), ids.cpu(), normalizers.cpu()};
}

/// Among equals the lower id comes first, as on the CPU; the device promises no order of them, nor
/// which of them it returns.
std::span<const TokenLogprob> CudaEngine::top_of(const StepPlan::Score& score, int64_t row,
                                                 const Likeliest& all) {
  const auto count = static_cast<int64_t>(score.prefill->num_prompt_top);
  top_.resize(static_cast<size_t>(count));
  if (count == 0) return top_;
  const int64_t width = all.logits.size(1);
  const float* logits = all.logits.const_data_ptr<float>() + row * width;
  const int64_t* ids = all.ids.const_data_ptr<int64_t>() + row * width;
  if (count < width && logits[count - 1] == logits[count]) return top_on_host(score, row);
  const float normalizer = all.normalizers.const_data_ptr<float>()[row];
  std::vector<std::pair<float, int32_t>> sorted;
  for (int64_t i = 0; i < count; ++i)
    sorted.emplace_back(-logits[i], static_cast<int32_t>(ids[i]));
  std::ranges::sort(sorted);
  for (size_t i = 0; i < sorted.size(); ++i)
    top_[i] = {sorted[i].second, -sorted[i].first - normalizer};
  return top_;
}

std::span<const TokenLogprob> CudaEngine::top_on_host(const StepPlan::Score& score, int64_t row) {
  const at::Tensor of_row = decoder_.logits().select(0, row).cpu();
  sampler_.score({of_row.const_data_ptr<float>(), static_cast<size_t>(config_.vocab_size)},
                 score.token, top_);
  return top_;
}

}  // namespace primerl
