// Sampling on the host: the logits are copied there and the CPU's sampler is used, so that tokens
// and kept sets are the same. ATen's weights would not have the same bits, which decide the sampled
// token: ATen has no fused multiply-add.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/parallel.h"
#include "kernels/common/sampler.h"
#include "kernels/cuda/aten/on_stream.h"
#include "kernels/engine/kept_sets.h"

namespace primerl::cuda {
namespace {

SamplingParams params_of(const SamplingRow& row) {
  SamplingParams params;
  params.temperature = row.inverse_temperature == 0 ? 0 : 1;  // sample_by() gets the inverse
                                                              // temperature itself
  params.top_k = row.top_k;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  return params;
}

/// Writes an entry of kept_sets.h, or an empty one, as bits of a row.
void write_bits(const std::vector<std::byte>& entry, int64_t vocab_size, std::span<int32_t> words) {
  std::vector<int32_t> ids;
  if (!entry.empty()) KeptReader(entry).next().value().list(ids);
  std::ranges::fill(words, ids.empty() ? -1 : 0);
  for (const int32_t id : ids)
    words[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(1U << id % 32);
  if (ids.empty() && vocab_size % 32 != 0)
    words.back() = static_cast<int32_t>((1U << vocab_size % 32) - 1);
}

/// The results of one call, on the host.
struct Drawn {
  at::Tensor logits, settings, indices;  // inputs
  at::Tensor tokens, logprobs, kept;     // results; kept: undefined if it is not requested
};

void draw_rows(const Drawn& on_host, int64_t begin, int64_t end) {
  Sampler sampler;
  const int64_t vocab_size = on_host.logits.size(1);
  const auto* logits = on_host.logits.const_data_ptr<float>();
  const auto* settings = static_cast<const SamplingRow*>(on_host.settings.const_data_ptr());
  const auto* indices = on_host.indices.const_data_ptr<int32_t>();
  std::vector<std::byte> entry;
  for (int64_t row = begin; row < end; ++row) {
    const SamplingRow& how = settings[row];
    entry.clear();
    const SampledToken drawn = sampler.sample_by(
        how.inverse_temperature, {logits + row * vocab_size, static_cast<size_t>(vocab_size)},
        params_of(how), how.seed, indices[row], on_host.kept.defined() ? &entry : nullptr);
    // The CPU's sampler returns the greatest token of a row with NaN or infinity.
    on_host.tokens.mutable_data_ptr<int32_t>()[row] = std::isnan(drawn.logprob) ? 0 : drawn.token;
    on_host.logprobs.mutable_data_ptr<float>()[row] = drawn.logprob;
    if (!on_host.kept.defined()) continue;
    const auto words = static_cast<size_t>(kept_words(vocab_size));
    write_bits(
        entry, vocab_size,
        {on_host.kept.mutable_data_ptr<int32_t>() + row * static_cast<int64_t>(words), words});
  }
}

}  // namespace

int64_t sample_workspace(int64_t) { return 0; }

Outcome sample(const SampleArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor logits =
      on.of(args.type, args.logits, {args.rows, args.vocab_size}, {args.row_stride, 1});
  const at::Tensor tokens = on.ints(args.tokens, {args.rows});
  const at::Tensor logprobs = on.floats(args.logprobs, {args.rows});
  const auto bytes = args.rows * static_cast<int64_t>(sizeof(SamplingRow));
  Drawn drawn{on.on_host(wide(logits).contiguous()),
              on.on_host(on.bytes(args.settings, bytes)),
              on.on_host(on.ints(args.indices, {args.rows})),
              on.on_host(tokens),
              on.on_host(logprobs),
              {}};
  at::Tensor kept;
  if (args.kept != nullptr) {
    kept = on.ints(reinterpret_cast<const int32_t*>(args.kept),
                   {args.rows, kept_words(args.vocab_size)});
    drawn.kept = on.on_host(kept);
  }
  share(args.rows, args.rows * args.vocab_size,
        [&](int64_t begin, int64_t end) { draw_rows(drawn, begin, end); });
  tokens.copy_(drawn.tokens);
  logprobs.copy_(drawn.logprobs);
  if (kept.defined()) kept.copy_(drawn.kept);
  return {};
}

}  // namespace primerl::cuda
