#include "kernels/cuda/engine/step_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace primerl {
namespace {

constexpr int64_t kIntArrays = 7;  // of StepArrays
constexpr int64_t kBytesOfRow = sizeof(cuda::AdapterRow) + sizeof(cuda::SamplingRow) +
                                2 * sizeof(cuda::AdapterTile) +
                                kIntArrays * static_cast<int64_t>(sizeof(int32_t));

StepArrays arrays_of(at::Tensor& bytes, int64_t rows) {
  auto* begin = static_cast<std::byte*>(bytes.mutable_data_ptr());
  StepArrays arrays;
  // the array with the largest alignment
  arrays.adapter_rows = reinterpret_cast<cuda::AdapterRow*>(begin);
  arrays.settings = reinterpret_cast<cuda::SamplingRow*>(arrays.adapter_rows + rows);
  auto* next = reinterpret_cast<int32_t*>(arrays.settings + rows);
  for (int32_t** array : {&arrays.indices, &arrays.tokens, &arrays.positions, &arrays.slots,
                          &arrays.lengths, &arrays.picked, &arrays.labels}) {
    *array = next;
    next += rows;
  }
  arrays.tiles = reinterpret_cast<cuda::AdapterTile*>(next);
  arrays.runs = arrays.tiles + rows;
  return arrays;
}

at::TensorOptions pinned(at::ScalarType type) {
  return at::TensorOptions().dtype(type).pinned_memory(true);
}

}  // namespace

StepMemory::StepMemory(int64_t rows_max, int64_t blocks_max, int64_t vocab_size,
                       const CudaStream& stream)
    : rows_max_(rows_max), vocab_size_(vocab_size), stream_(stream) {
  const auto on_cuda = [&](at::ScalarType type) {
    return at::TensorOptions(stream.device()).dtype(type);
  };
  device_bytes_ = at::zeros({rows_max * kBytesOfRow}, on_cuda(at::kByte));
  device_ = arrays_of(device_bytes_, rows_max);
  table_.resize(static_cast<size_t>(rows_max * blocks_max), 0);
  device_table_ = at::zeros({rows_max, blocks_max}, on_cuda(at::kInt));
  device_drawn_ = at::zeros({2, rows_max}, on_cuda(at::kInt));
  workspace_ = at::zeros({cuda::sample_workspace(rows_max)}, on_cuda(at::kByte));
  device_kept_ = at::zeros({rows_max, cuda::kept_words(vocab_size)}, on_cuda(at::kInt));
  for (buffer_index_ = 0; buffer_index_ < buffers_.size(); ++buffer_index_) {
    HostBuffers& buffer_index = buffers_[buffer_index_];
    buffer_index.bytes = at::empty({rows_max * kBytesOfRow}, pinned(at::kByte));
    buffer_index.arrays = arrays_of(buffer_index.bytes, rows_max);
    buffer_index.table = at::empty({rows_max, blocks_max}, pinned(at::kInt));
    buffer_index.drawn = at::empty({2, rows_max}, pinned(at::kInt));
    for (int64_t row = 0; row < rows_max; ++row) clear(row);
  }
  buffer_index_ = 0;
}

void StepMemory::sample(int64_t row, const Sequence& sequence, int32_t index) {
  const SamplingParams& sampling = sequence.request.sampling;
  host().settings[row] = {
      sequence.request.seed, sampling.top_p, sampling.min_p,
      sampling.temperature == 0 ? 0.0F : 1.0F / static_cast<float>(sampling.temperature),
      sampling.top_k};
  host().indices[row] = index;
}

void StepMemory::decode(int64_t row, const RowBatch& batch, const RowSpan& span) {
  const auto from = static_cast<size_t>(span.query_begin);
  const StepArrays& arrays = host();
  arrays.tokens[row] = batch.tokens[from];
  arrays.positions[row] = batch.positions[from];
  arrays.slots[row] = batch.cache_rows[from];
  arrays.lengths[row] = span.num_keys();
  const int64_t blocks = (span.num_keys() + batch.block_size - 1) / batch.block_size;
  int32_t* to = table_.data() + row * table_stride();
  const int32_t* from_blocks = batch.kv_blocks.data() + span.kv_offset;
  if (std::equal(from_blocks, from_blocks + blocks, to)) return;
  std::copy(from_blocks, from_blocks + blocks, to);
  const bool is_first = changed_.width == 0;
  changed_ = {is_first ? row : std::min(changed_.begin, row),
              is_first ? row + 1 : std::max(changed_.end, row + 1),
              std::max(changed_.width, blocks)};
}

void StepMemory::clear(int64_t row) {
  const StepArrays& arrays = host();
  arrays.settings[row] = {};
  for (int32_t* array : {arrays.indices, arrays.tokens, arrays.positions, arrays.lengths,
                         arrays.picked, arrays.labels})
    array[row] = 0;
  arrays.slots[row] = -1;
}

Status StepMemory::upload() {
  const at::Tensor& bytes = buffers_[buffer_index_].bytes;
  RETURN_IF_ERROR(stream_.copy(device_bytes_.mutable_data_ptr(), bytes.const_data_ptr(),
                               static_cast<size_t>(bytes.numel())));
  return upload_table();
}

Status StepMemory::upload_table() {
  const auto [begin, end, width] = std::exchange(changed_, {});
  if (width == 0) return ok();
  auto* sent = buffers_[buffer_index_].table.mutable_data_ptr<int32_t>();
  for (int64_t row = begin; row < end; ++row)
    std::copy_n(table_.data() + row * table_stride(), width, sent + row * table_stride());
  return stream_.copy_rows(
      device_table_.mutable_data_ptr<int32_t>() + begin * table_stride(),
      sent + begin * table_stride(), static_cast<size_t>(table_stride()) * sizeof(int32_t),
      static_cast<size_t>(width) * sizeof(int32_t), static_cast<size_t>(end - begin));
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

Status StepMemory::score(int64_t rows, const at::Tensor& logits, float* normalizers) const {
  auto* drawn = device_drawn_.mutable_data_ptr<int32_t>();
  return launched(cuda::cross_entropy({.rows = rows,
                                       .vocab_size = vocab_size_,
                                       .row_stride = logits.stride(0),
                                       .type = cuda::Type::kFloat32,
                                       .logits = logits.mutable_data_ptr(),
                                       .labels = device_.labels,
                                       .logprobs = reinterpret_cast<float*>(drawn + rows_max_),
                                       .log_normalizers = normalizers},
                                      stream_.raw()),
                  "cross_entropy");
}

Status StepMemory::download(int64_t rows, bool has_kept) {
  HostBuffers& buffer_index = buffers_[buffer_index_];
  RETURN_IF_ERROR(stream_.copy(buffer_index.drawn.mutable_data_ptr(),
                               device_drawn_.const_data_ptr(),
                               static_cast<size_t>(buffer_index.drawn.numel()) * sizeof(int32_t)));
  if (has_kept) {
    // Few requests need kept sets: the host's buffer is allocated on first use.
    if (!buffer_index.kept.defined())
      buffer_index.kept = at::empty(device_kept_.sizes(), pinned(at::kInt));
    const auto words = static_cast<size_t>(rows * buffer_index.kept.size(1));
    RETURN_IF_ERROR(stream_.copy(buffer_index.kept.mutable_data_ptr(),
                                 device_kept_.const_data_ptr(), words * sizeof(int32_t)));
  }
  stream_.record(buffer_index.is_there);
  return ok();
}

std::span<const int32_t> StepMemory::tokens(size_t buffer_index) const {
  return {buffers_[buffer_index].drawn.const_data_ptr<int32_t>(), static_cast<size_t>(rows_max_)};
}

std::span<const float> StepMemory::logprobs(size_t buffer_index) const {
  const int32_t* bits = buffers_[buffer_index].drawn.const_data_ptr<int32_t>() + rows_max_;
  return {reinterpret_cast<const float*>(bits), static_cast<size_t>(rows_max_)};
}

std::span<const uint32_t> StepMemory::kept(size_t buffer_index, int64_t row) const {
  const at::Tensor& all = buffers_[buffer_index].kept;
  const auto words = static_cast<size_t>(all.size(1));
  const auto* first = reinterpret_cast<const uint32_t*>(all.const_data_ptr<int32_t>());
  return {first + static_cast<size_t>(row) * words, words};
}

}  // namespace primerl
