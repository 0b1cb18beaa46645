#include "kernels/torch/cuda/step_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace primerl {
namespace {

constexpr int64_t kIntArrays = 7;  // of StepArrays
constexpr int64_t kBytesOfRow = sizeof(cuda::SamplingRow) + sizeof(cuda::AdapterTile) +
                                kIntArrays * static_cast<int64_t>(sizeof(int32_t));

StepArrays arrays_of(at::Tensor& bytes, int64_t rows) {
  auto* begin = static_cast<std::byte*>(bytes.mutable_data_ptr());
  StepArrays arrays;
  arrays.settings = reinterpret_cast<cuda::SamplingRow*>(begin);
  auto* next = reinterpret_cast<int32_t*>(arrays.settings + rows);
  for (int32_t** array : {&arrays.indices, &arrays.tokens, &arrays.positions, &arrays.slots,
                          &arrays.lengths, &arrays.picked, &arrays.labels}) {
    *array = next;
    next += rows;
  }
  arrays.tiles = reinterpret_cast<cuda::AdapterTile*>(next);
  return arrays;
}

at::TensorOptions pinned(at::ScalarType type) {
  return at::TensorOptions().dtype(type).pinned_memory(true);
}

}  // namespace

StepMemory::StepMemory(int64_t rows_max, int64_t blocks_max, int64_t vocab_size,
                       const CardStream& stream)
    : rows_max_(rows_max), vocab_size_(vocab_size), stream_(stream) {
  const auto on_card = [&](at::ScalarType type) {
    return at::TensorOptions(stream.device()).dtype(type);
  };
  host_bytes_ = at::empty({rows_max * kBytesOfRow}, pinned(at::kByte));
  device_bytes_ = at::zeros({rows_max * kBytesOfRow}, on_card(at::kByte));
  host_ = arrays_of(host_bytes_, rows_max);
  device_ = arrays_of(device_bytes_, rows_max);
  host_table_ = at::empty({rows_max, blocks_max}, pinned(at::kInt)).zero_();
  device_table_ = at::zeros({rows_max, blocks_max}, on_card(at::kInt));
  host_drawn_ = at::empty({2, rows_max}, pinned(at::kInt));
  device_drawn_ = at::zeros({2, rows_max}, on_card(at::kInt));
  workspace_ = at::zeros({cuda::sample_workspace(rows_max)}, on_card(at::kByte));
  device_kept_ = at::zeros({rows_max, cuda::kept_words(vocab_size)}, on_card(at::kInt));
  for (int64_t row = 0; row < rows_max; ++row) clear(row);
}

void StepMemory::sample(int64_t row, const Sequence& sequence) {
  const SamplingParams& sampling = sequence.request.sampling;
  host_.settings[row] = {
      sequence.request.seed, sampling.top_p, sampling.min_p,
      sampling.temperature == 0 ? 0.0F : 1.0F / static_cast<float>(sampling.temperature),
      sampling.top_k};
  host_.indices[row] = static_cast<int32_t>(sequence.tokens.size());
}

void StepMemory::decode(int64_t row, const RowBatch& batch, const RowSpan& span) {
  const auto from = static_cast<size_t>(span.query_begin);
  host_.tokens[row] = batch.tokens[from];
  host_.positions[row] = batch.positions[from];
  host_.slots[row] = batch.cache_rows[from];
  host_.lengths[row] = span.num_keys();
  const int64_t blocks = (span.num_keys() + batch.block_size - 1) / batch.block_size;
  int32_t* to = host_table_.mutable_data_ptr<int32_t>() + row * table_stride();
  const int32_t* from_blocks = batch.kv_blocks.data() + span.kv_offset;
  if (std::equal(from_blocks, from_blocks + blocks, to)) return;
  std::copy(from_blocks, from_blocks + blocks, to);
  table_width_ = std::max(table_width_, blocks);
}

void StepMemory::clear(int64_t row) {
  host_.settings[row] = {};
  for (int32_t* array :
       {host_.indices, host_.tokens, host_.positions, host_.lengths, host_.picked, host_.labels})
    array[row] = 0;
  host_.slots[row] = -1;
}

Status StepMemory::upload(int64_t table_rows) {
  RETURN_IF_ERROR(stream_.copy(device_bytes_.mutable_data_ptr(), host_bytes_.const_data_ptr(),
                               static_cast<size_t>(host_bytes_.numel())));
  const auto width = static_cast<size_t>(std::exchange(table_width_, 0)) * sizeof(int32_t);
  if (table_rows == 0 || width == 0) return ok();
  return stream_.copy_rows(device_table_.mutable_data_ptr(), host_table_.const_data_ptr(),
                           static_cast<size_t>(table_stride()) * sizeof(int32_t), width,
                           static_cast<size_t>(table_rows));
}

Status StepMemory::draw(int64_t rows, const at::Tensor& logits, bool has_kept) const {
  auto* drawn = device_drawn_.mutable_data_ptr<int32_t>();
  auto* kept = reinterpret_cast<uint32_t*>(device_kept_.mutable_data_ptr<int32_t>());
  return launched(cuda::sample({.rows = rows,
                                .vocab_size = vocab_size_,
                                .row_stride = logits.stride(0),
                                .type = cuda::Type::kFloat32,
                                .logits = logits.const_data_ptr(),
                                .settings = device_.settings,
                                .indices = device_.indices,
                                .tokens = drawn,
                                .logprobs = reinterpret_cast<float*>(drawn + rows_max_),
                                .kept = has_kept ? kept : nullptr,
                                .workspace = workspace_.mutable_data_ptr()},
                               stream_.raw()),
                  "sample");
}

Status StepMemory::score(int64_t rows, const at::Tensor& logits) const {
  auto* drawn = device_drawn_.mutable_data_ptr<int32_t>();
  return launched(cuda::cross_entropy({.rows = rows,
                                       .vocab_size = vocab_size_,
                                       .row_stride = logits.stride(0),
                                       .type = cuda::Type::kFloat32,
                                       .logits = logits.mutable_data_ptr(),
                                       .labels = device_.labels,
                                       .logprobs = reinterpret_cast<float*>(drawn + rows_max_)},
                                      stream_.raw()),
                  "cross_entropy");
}

Status StepMemory::download(int64_t rows, bool has_kept) {
  RETURN_IF_ERROR(stream_.copy(host_drawn_.mutable_data_ptr(), device_drawn_.const_data_ptr(),
                               static_cast<size_t>(host_drawn_.numel()) * sizeof(int32_t)));
  if (has_kept) {
    // Few engines are ever asked for kept sets: the host's part is made for the first that is.
    if (!host_kept_.defined()) host_kept_ = at::empty(device_kept_.sizes(), pinned(at::kInt));
    const auto words = static_cast<size_t>(rows * host_kept_.size(1));
    RETURN_IF_ERROR(stream_.copy(host_kept_.mutable_data_ptr(), device_kept_.const_data_ptr(),
                                 words * sizeof(int32_t)));
  }
  return stream_.wait();
}

std::span<const int32_t> StepMemory::tokens() const {
  return {host_drawn_.const_data_ptr<int32_t>(), static_cast<size_t>(rows_max_)};
}

std::span<const float> StepMemory::logprobs() const {
  const int32_t* bits = host_drawn_.const_data_ptr<int32_t>() + rows_max_;
  return {reinterpret_cast<const float*>(bits), static_cast<size_t>(rows_max_)};
}

std::span<const uint32_t> StepMemory::kept(int64_t row) const {
  const auto words = static_cast<size_t>(host_kept_.size(1));
  const auto* all = reinterpret_cast<const uint32_t*>(host_kept_.const_data_ptr<int32_t>());
  return {all + static_cast<size_t>(row) * words, words};
}

}  // namespace primerl
