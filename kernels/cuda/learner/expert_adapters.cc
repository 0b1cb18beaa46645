// LoRA deltas of experts in a training pass. All rows of an expert and a slot are one group of the
// grouped GEMMs; groups are sorted by expert, then by slot.
#include "kernels/cuda/learner/adapters.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

#include "graph/base/random.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"

namespace primerl {
namespace {

constexpr int64_t kGroupsMax = 1023;  // of _grouped_mm
constexpr auto kBytesOfTile = static_cast<int64_t>(sizeof(cuda::AdapterTile));
constexpr auto kBytesOfDropRow = static_cast<int64_t>(sizeof(cuda::DropRow));

}  // namespace

/// Slots between two runs have no rows.
void LearnerAdapters::begin_experts() {
  std::vector<cuda::AdapterTile> runs;
  std::vector<int32_t> scalings;
  for (const Run& run : runs_) {
    while (std::ssize(runs) < run.slot - runs_.front().slot)
      runs.push_back({.first = static_cast<int32_t>(run.first)});
    runs.push_back({.first = static_cast<int32_t>(run.first),
                    .rows = static_cast<int32_t>(run.rows),
                    .slot = static_cast<int32_t>(run.slot)});
    const float scaling = adapters_[static_cast<size_t>(run.slot)]->scaling;
    scalings.insert(scalings.end(), static_cast<size_t>(run.rows), std::bit_cast<int32_t>(scaling));
  }
  slot_runs_ = stream_.values(std::span<const cuda::AdapterTile>(runs));
  row_scalings_ = stream_.ints(scalings).view(at::kFloat);
}

Result<LearnerAdapters::ExpertRows> LearnerAdapters::sort_rows(const at::Tensor& sources,
                                                               const at::Tensor& ends) const {
  const int64_t num_pairs = sources.numel(), experts = ends.numel(), slots = num_slots();
  const int64_t num_tiles = cuda::num_expert_tiles_of(num_pairs, static_cast<int32_t>(experts),
                                                      slots, cuda::kLowRankTileRows);
  ExpertRows made;
  made.ends = at::empty({experts * slots}, ends.options());
  made.tiles = at::empty({num_tiles * kBytesOfTile}, ends.options().dtype(at::kByte));
  RETURN_IF_ERROR(
      launched(cuda::make_expert_tiles(
                   {.num_pairs = num_pairs,
                    .num_experts = static_cast<int32_t>(experts),
                    .ends = ends.const_data_ptr<int32_t>(),
                    .sources = sources.const_data_ptr<int32_t>(),
                    .runs = static_cast<const cuda::AdapterTile*>(slot_runs_.const_data_ptr()),
                    .num_runs = slots,
                    .tile_rows = cuda::kLowRankTileRows,
                    .num_tiles = num_tiles,
                    .tiles = static_cast<cuda::AdapterTile*>(made.tiles.mutable_data_ptr()),
                    .run_ends = made.ends.mutable_data_ptr<int32_t>()},
                   stream_.raw()),
               "tiles of experts"));
  made.scalings = at::index_select(row_scalings_, 0, sources).unsqueeze(1);
  if (dropped_.defined()) {
    made.dropped = at::index_select(dropped_.view({-1, kBytesOfDropRow}), 0, sources);
    made.experts = at::searchsorted(ends, at::arange(num_pairs, ends.options()), true, true);
  }
  if (type_ != at::kFloat) return made;
  const at::Tensor host = made.ends.to(at::kLong).cpu();
  made.on_host.assign(host.const_data_ptr<int64_t>(),
                      host.const_data_ptr<int64_t>() + host.numel());
  return made;
}

at::Tensor LearnerAdapters::of_experts(const at::Tensor& flat, const Matrix& matrix,
                                       const Block& block) const {
  return flat.as_strided({matrix.groups, num_slots(), block.rows, block.width},
                         {block.stride, flat.stride(0), block.width, 1},
                         runs_.front().slot * flat.stride(0) + block.offset);
}

template <class Body>
void LearnerAdapters::for_each_run(const Matrix& matrix, const ExpertRows& expert_rows,
                                   Body&& body) const {
  int64_t first = 0;
  for (int64_t i = 0; i < matrix.groups * num_slots(); ++i) {
    const int64_t end = expert_rows.on_host[static_cast<size_t>(i)];
    if (end > first) body(first, end - first, i / num_slots(), i % num_slots());
    first = end;
  }
}

/// Weights of one slot are read in place; those of several are copied side by side. If there are
/// more groups than the library supports, tiles are used, which read the weights in place.
at::Tensor LearnerAdapters::grouped(const Matrix& matrix, const Block& block, bool is_transposed,
                                    const ExpertRows& expert_rows, const at::Tensor& x) const {
  const int64_t columns = is_transposed ? block.width : block.rows;
  if (type_ != at::kFloat && expert_rows.ends.numel() > kGroupsMax) {
    const at::Tensor y = at::zeros({x.size(0), columns}, x.options());
    add_low_rank(expert_rows.tiles, block, is_transposed, x, y);
    return y;
  }
  const at::Tensor all = of_experts(weights_, matrix, block);
  if (type_ != at::kFloat) {
    const at::Tensor weights = all.reshape({-1, block.rows, block.width});
    return at::_grouped_mm(x, is_transposed ? weights : weights.transpose(1, 2), expert_rows.ends);
  }
  const at::Tensor y = at::empty({x.size(0), columns}, x.options());
  for_each_run(matrix, expert_rows, [&](int64_t first, int64_t rows, int64_t expert, int64_t slot) {
    const at::Tensor weights = all.select(0, expert).select(0, slot);
    at::Tensor to = y.narrow(0, first, rows);
    at::mm_out(to, x.narrow(0, first, rows), is_transposed ? weights : weights.t());
  });
  return y;
}

void LearnerAdapters::add_grouped(const Matrix& matrix, const Block& block, bool is_transposed,
                                  const ExpertRows& expert_rows, const at::Tensor& x,
                                  const at::Tensor& y) const {
  if (type_ != at::kFloat) return add_low_rank(expert_rows.tiles, block, is_transposed, x, y);
  const at::Tensor all = of_experts(weights_, matrix, block);
  for_each_run(matrix, expert_rows, [&](int64_t first, int64_t rows, int64_t expert, int64_t slot) {
    const at::Tensor weights = all.select(0, expert).select(0, slot);
    at::Tensor to = y.narrow(0, first, rows);
    at::addmm_out(to, to, x.narrow(0, first, rows), is_transposed ? weights : weights.t());
  });
}

/// If there are more groups than the library supports, some experts are computed at a time. The
/// rows of all groups before them form one more group, whose result is discarded.
void LearnerAdapters::add_grouped_gradients(const Matrix& matrix, const Block& block,
                                            const ExpertRows& expert_rows, const at::Tensor& dy,
                                            const at::Tensor& x) const {
  at::Tensor all = of_experts(gradients_, matrix, block);
  if (type_ != at::kFloat) {
    const int64_t slots = num_slots(), groups = expert_rows.ends.numel();
    const int64_t experts =
        groups <= kGroupsMax ? matrix.groups : std::max<int64_t>(1, (kGroupsMax - 1) / slots);
    for (int64_t first = 0; first < matrix.groups; first += experts) {
      const int64_t count = std::min(experts, matrix.groups - first), before = first > 0 ? 1 : 0;
      const at::Tensor ends =
          expert_rows.ends.narrow(0, first * slots - before, count * slots + before);
      const at::Tensor made = at::_grouped_mm(dy.t(), x, ends).narrow(0, before, count * slots);
      all.narrow(0, first, count).add_(made.view({count, slots, block.rows, block.width}));
    }
    return;
  }
  for_each_run(matrix, expert_rows, [&](int64_t first, int64_t rows, int64_t expert, int64_t slot) {
    at::Tensor to = all.select(0, expert).select(0, slot);
    at::addmm_out(to, to, dy.narrow(0, first, rows).t(), x.narrow(0, first, rows));
  });
}

at::Tensor LearnerAdapters::left_of(const Matrix& matrix, const ExpertRows& expert_rows,
                                    const at::Tensor& x) {
  if (!expert_rows.dropped.defined()) return x;
  const at::Tensor left = at::empty(x.sizes(), x.options());
  drop_rows(matrix, expert_rows, x, left, false);
  return left;
}

void LearnerAdapters::drop_rows(const Matrix& matrix, const ExpertRows& expert_rows,
                                const at::Tensor& x, const at::Tensor& y, bool adds) {
  const Part& part = matrix.parts.front();
  at::Tensor& modules = modules_[part.b];
  if (!modules.defined()) {
    std::vector<uint64_t> names;
    for (const std::string& module : part.modules) names.push_back(stable_hash(module));
    modules = stream_.values(std::span<const uint64_t>(names)).view(at::kLong);
  }
  const at::Tensor of_rows = at::index_select(modules, 0, expert_rows.experts);
  const cuda::Outcome outcome = cuda::drop_rows(
      {.rows = x.size(0),
       .width = x.size(1),
       .type = op_type(type_),
       .modules = reinterpret_cast<const uint64_t*>(of_rows.const_data_ptr<int64_t>()),
       .dropped = static_cast<const cuda::DropRow*>(expert_rows.dropped.const_data_ptr()),
       .x = x.const_data_ptr(),
       .y = y.mutable_data_ptr(),
       .adds = adds},
      stream_.raw());
  TORCH_CHECK(outcome.is_ok(), "dropout of adapters of experts: ", outcome.fault);
}

void LearnerAdapters::forward(const Matrix& matrix, const ExpertRows& expert_rows,
                              const at::Tensor& x, const at::Tensor& y) {
  for (const Matrix& one : apart(matrix)) {
    const at::Tensor u =
        grouped(one, block_of(one), false, expert_rows, left_of(one, expert_rows, x))
            .mul_(expert_rows.scalings);
    int64_t at = 0;
    for (const Part& part : one.parts) {
      add_grouped(one, block_of(part), false, expert_rows, u.narrow(1, at, rank_),
                  y.narrow(1, part.column, part.outputs));
      at += rank_;
    }
  }
}

void LearnerAdapters::backward(const Matrix& matrix, const ExpertRows& expert_rows,
                               const at::Tensor& x, const at::Tensor& dy, const at::Tensor& dx,
                               const at::Tensor& weights) {
  for (const Matrix& one : apart(matrix)) {
    const at::Tensor left = left_of(one, expert_rows, x);
    const at::Tensor u =
        grouped(one, block_of(one), false, expert_rows, left).mul_(expert_rows.scalings);
    std::vector<at::Tensor> grads;  // each [pairs, rank]
    for (const Part& part : one.parts)
      grads.push_back(
          grouped(one, block_of(part), true, expert_rows, dy.narrow(1, part.column, part.outputs)));
    const at::Tensor du =
        (grads.size() == 1 ? grads.front() : at::cat(grads, 1)).mul_(expert_rows.scalings);
    if (expert_rows.dropped.defined()) {
      const at::Tensor added = at::zeros(dx.sizes(), dx.options());
      add_grouped(one, block_of(one), true, expert_rows, du, added);
      drop_rows(one, expert_rows, added, dx, true);
    } else {
      add_grouped(one, block_of(one), true, expert_rows, du, dx);
    }
    if (weights.defined()) {
      u.mul_(weights);
      du.mul_(weights);
    }
    int64_t at = 0;
    for (const Part& part : one.parts) {
      add_grouped_gradients(one, block_of(part), expert_rows,
                            dy.narrow(1, part.column, part.outputs), u.narrow(1, at, rank_));
      at += rank_;
    }
    add_grouped_gradients(one, block_of(one), expert_rows, du, left);
  }
}

}  // namespace primerl
