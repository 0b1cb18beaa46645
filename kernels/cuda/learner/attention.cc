#include "kernels/cuda/learner/attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace primerl {
namespace {

constexpr int64_t kDenseRowsMin = 4096;                 // cuDNN is faster from about here on
constexpr int64_t kKeysOfPartMax = int64_t{1} << 18;    // gathered, except for a single long
                                                        // document
constexpr int64_t kScoresOfPartMax = int64_t{1} << 26;  // fp32 scores at a time

/// Converts [queries, num_heads, head_dim] to [kv_heads, shared * queries, head_dim].
at::Tensor by_kv_head(const at::Tensor& rows, int64_t kv_heads) {
  const int64_t count = rows.size(0), shared = rows.size(1) / kv_heads, d = rows.size(2);
  return rows.reshape({count, kv_heads, shared, d})
      .permute({1, 2, 0, 3})
      .reshape({kv_heads, shared * count, d});
}

/// The inverse.
at::Tensor by_row(const at::Tensor& by_head, int64_t count) {
  const int64_t kv_heads = by_head.size(0), d = by_head.size(2);
  const int64_t shared = by_head.size(1) / count;
  return by_head.view({kv_heads, shared, count, d})
      .permute({2, 0, 1, 3})
      .reshape({count, kv_heads * shared, d});
}

/// softmax(q k' * scale) of queries; the first attends to `num_seen` keys, and each next one to one
/// more. q and k are [kv_heads, any, head_dim].
at::Tensor weights_of(const at::Tensor& q, const at::Tensor& k, double scale, int64_t count,
                      int64_t num_seen) {
  const int64_t kv_heads = k.size(0), num_keys = k.size(1), shared = q.size(1) / count;
  at::Tensor scores =
      at::bmm(q, k.transpose(1, 2)).mul_(scale).view({kv_heads, shared, count, num_keys});
  const auto options = at::TensorOptions(q.device()).dtype(at::kLong);
  const at::Tensor indices = at::arange(num_keys, options);
  const at::Tensor seen = at::arange(num_seen, num_seen + count, options);
  scores.masked_fill_(indices.unsqueeze(0).ge(seen.unsqueeze(1)),
                      -std::numeric_limits<float>::infinity());
  return at::softmax(scores, -1).view({kv_heads, shared * count, num_keys});
}

}  // namespace

int64_t dense_length(int64_t num_rows) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_rows)));
  const int64_t unit = std::max<int64_t>(power / 8, 1);
  return (num_rows + unit - 1) / unit * unit;
}

GroupedIndices group_indices(const std::vector<int32_t>& numbers) {
  std::vector<int32_t> indices(numbers.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::ranges::stable_sort(indices, {}, [&](int32_t i) { return numbers[static_cast<size_t>(i)]; });
  std::vector<int32_t> offsets;
  GroupedIndices grouped;
  for (size_t i = 0; i < indices.size(); ++i) {
    const int32_t number = numbers[static_cast<size_t>(indices[i])];
    if (i > 0 && number == grouped.all.back()) continue;
    grouped.all.push_back(number);
    offsets.push_back(static_cast<int32_t>(i));
  }
  grouped.num_ids = std::ssize(grouped.all);
  offsets.push_back(static_cast<int32_t>(indices.size()));
  grouped.all.insert(grouped.all.end(), offsets.begin(), offsets.end());
  grouped.all.insert(grouped.all.end(), indices.begin(), indices.end());
  return grouped;
}

double TrainingAttention::scale() const {
  return 1.0 / std::sqrt(static_cast<double>(spec_.head_dim));
}

/// A document that follows its shared prompt directly is merged with that prompt.
std::vector<TrainingAttention::Document> TrainingAttention::documents_of(
    const RowBatch& batch) const {
  std::vector<Document> all;
  for (const RowSpan& span : batch.spans) {
    const int32_t* keys = batch.kv_blocks.data() + span.kv_offset;
    const bool follows = span.num_cached > 0 && !all.empty() && all.back().is_plain() &&
                         all.back().first_row == keys[0] &&
                         all.back().num_queries == span.num_cached &&
                         all.back().first_row + span.num_cached == span.query_begin;
    if (follows)
      all.back().num_queries += span.num_queries;
    else
      all.push_back({span.query_begin, span.num_queries, span.num_cached, span.kv_offset});
  }
  return all;
}

bool TrainingAttention::is_dense(const Document& document, at::ScalarType type) const {
  const bool has_heads = spec_.head_dim == 64 || spec_.head_dim == 128;
  return type == at::kBFloat16 && !is_repeatable_ && has_heads && document.is_plain() &&
         document.num_queries >= kDenseRowsMin;
}

void TrainingAttention::begin(const RowBatch& batch, at::ScalarType type) {
  parts_.clear();
  has_gathered_ = false;
  Part part;
  const auto close = [&] {
    if (!part.documents.empty()) finish(std::move(part), batch);
    part = {};
  };
  for (const Document& document : documents_of(batch)) {
    const bool dense = is_dense(document, type);
    if (dense || part.num_keys + document.num_keys() > kKeysOfPartMax) close();
    part.documents.push_back(document);
    part.num_keys += document.num_keys();
    part.is_dense = dense;
    if (dense) close();
  }
  close();
}

void TrainingAttention::finish(Part part, const RowBatch& batch) {
  part.first_row = part.documents.front().first_row;
  std::vector<int32_t> query_ends = {0}, key_ends = {0}, key_rows;
  for (const Document& document : part.documents) {
    part.num_rows += document.num_queries;
    part.queries_max = std::max(part.queries_max, document.num_queries);
    part.keys_max = std::max(part.keys_max, document.num_keys());
    part.is_gathered = part.is_gathered || !document.is_plain();
    query_ends.push_back(query_ends.back() + static_cast<int32_t>(document.num_queries));
    key_ends.push_back(key_ends.back() + static_cast<int32_t>(document.num_keys()));
    const int32_t* cached = batch.kv_blocks.data() + document.kv_offset;
    key_rows.insert(key_rows.end(), cached, cached + document.num_cached);
    for (int64_t i = 0; i < document.num_queries; ++i)
      key_rows.push_back(static_cast<int32_t>(document.first_row + i));
  }
  has_gathered_ = has_gathered_ || part.is_gathered;
  part.query_ends = stream_.ints(query_ends);
  part.key_ends = stream_.ints(key_ends);
  if (part.is_gathered) {
    part.key_rows = stream_.ints(key_rows);
    const GroupedIndices grouped = group_indices(key_rows);
    part.num_ids = grouped.num_ids;
    part.sums = stream_.ints(grouped.all);
  }
  parts_.push_back(std::move(part));
}

/// [rows of the part, num_heads, head_dim], a view.
at::Tensor TrainingAttention::heads(const at::Tensor& rows, const Part& part,
                                    int64_t num_heads) const {
  return rows.narrow(0, part.first_row, part.num_rows).unflatten(1, {num_heads, spec_.head_dim});
}

/// [keys of the part, num_kv_heads, head_dim]
at::Tensor TrainingAttention::keys_of(const at::Tensor& rows, const Part& part) const {
  if (!part.is_gathered) return heads(rows, part, spec_.num_kv_heads);
  return at::index_select(rows, 0, part.key_rows)
      .unflatten(1, {int64_t{spec_.num_kv_heads}, int64_t{spec_.head_dim}});
}

/// [1, num_heads, padded rows, head_dim]: zero rows follow, to which no query of a document
/// attends.
at::Tensor TrainingAttention::padded(const at::Tensor& rows, const Part& part,
                                     int64_t num_heads) const {
  at::Tensor here = heads(rows, part, num_heads);
  const int64_t length = dense_length(part.num_rows);
  if (length != part.num_rows) {
    at::Tensor longer = at::zeros({length, num_heads, spec_.head_dim}, here.options());
    longer.narrow(0, 0, part.num_rows).copy_(here);
    here = longer;
  }
  return here.unsqueeze(0).transpose(1, 2);
}

TrainingAttention::Kept TrainingAttention::forward_dense(const Part& part,
                                                         const AttentionRows& rows,
                                                         at::Tensor to) const {
  const auto made = at::_scaled_dot_product_cudnn_attention(
      padded(rows.queries, part, spec_.num_heads), padded(rows.keys, part, spec_.num_kv_heads),
      padded(rows.values, part, spec_.num_kv_heads), std::nullopt, true, 0.0, true, false, scale());
  to.copy_(std::get<0>(made).transpose(1, 2).squeeze(0).narrow(0, 0, part.num_rows));
  return {std::get<1>(made), std::get<6>(made), std::get<7>(made)};
}

/// The last query of a document attends to all its keys: causal masks are aligned to the end.
TrainingAttention::Kept TrainingAttention::forward_packed(const Part& part,
                                                          const AttentionRows& rows,
                                                          at::Tensor to) const {
  const auto made = at::_flash_attention_forward(
      heads(rows.queries, part, spec_.num_heads), keys_of(rows.keys, part),
      keys_of(rows.values, part), part.query_ends, part.key_ends, part.queries_max, part.keys_max,
      0.0, true, false, scale());
  to.copy_(std::get<0>(made));
  return {std::get<1>(made), std::get<2>(made), std::get<3>(made)};
}

void TrainingAttention::forward_exact(const Part& part, const AttentionRows& rows,
                                      const at::Tensor& to) const {
  const at::Tensor q = heads(rows.queries, part, spec_.num_heads);
  const at::Tensor keys = keys_of(rows.keys, part), values = keys_of(rows.values, part);
  int64_t first_key = 0, first_row = 0;
  for (const Document& document : part.documents) {
    const int64_t num_keys = document.num_keys();
    const at::Tensor k = keys.narrow(0, first_key, num_keys).transpose(0, 1);
    const at::Tensor v = values.narrow(0, first_key, num_keys).transpose(0, 1);
    const int64_t most = std::max<int64_t>(1, kScoresOfPartMax / (spec_.num_heads * num_keys));
    for (int64_t begin = 0; begin < document.num_queries; begin += most) {
      const int64_t count = std::min(most, document.num_queries - begin);
      const at::Tensor weights =
          weights_of(by_kv_head(q.narrow(0, first_row + begin, count), spec_.num_kv_heads), k,
                     scale(), count, document.num_cached + begin + 1);
      at::Tensor rows_of_part = to.narrow(0, first_row + begin, count);
      rows_of_part.copy_(by_row(at::bmm(weights, v), count));
    }
    first_key += num_keys;
    first_row += document.num_queries;
  }
}

TrainingAttention::KeptParts TrainingAttention::forward(const AttentionRows& rows,
                                                        const at::Tensor& attended) const {
  KeptParts kept;
  for (const Part& part : parts_) {
    const at::Tensor to = heads(attended, part, spec_.num_heads);
    if (attended.scalar_type() == at::kFloat) {
      forward_exact(part, rows, to);
      kept.emplace_back();
    } else {
      kept.push_back(part.is_dense ? forward_dense(part, rows, to)
                                   : forward_packed(part, rows, to));
    }
  }
  return kept;
}

AttentionRows TrainingAttention::backward_dense(const Part& part, const AttentionRows& rows,
                                                const at::Tensor& attended, const Kept& kept,
                                                const at::Tensor& dattended) const {
  const int64_t length = dense_length(part.num_rows);
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      padded(dattended, part, spec_.num_heads), padded(rows.queries, part, spec_.num_heads),
      padded(rows.keys, part, spec_.num_kv_heads), padded(rows.values, part, spec_.num_kv_heads),
      padded(attended, part, spec_.num_heads), kept.log_sum_exp, kept.seed, kept.offset,
      at::Tensor(), at::Tensor(), at::Tensor(), length, length, 0.0, true, scale());
  const auto back = [&](const at::Tensor& grad) {
    return grad.transpose(1, 2).squeeze(0).narrow(0, 0, part.num_rows);
  };
  return {back(dq), back(dk), back(dv)};
}

AttentionRows TrainingAttention::backward_packed(const Part& part, const AttentionRows& rows,
                                                 const at::Tensor& attended, const Kept& kept,
                                                 const at::Tensor& dattended) const {
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      heads(dattended, part, spec_.num_heads), heads(rows.queries, part, spec_.num_heads),
      keys_of(rows.keys, part), keys_of(rows.values, part), heads(attended, part, spec_.num_heads),
      kept.log_sum_exp, part.query_ends, part.key_ends, part.queries_max, part.keys_max, 0.0, true,
      kept.seed, kept.offset, scale());
  return {dq, dk, dv};
}

AttentionRows TrainingAttention::backward_exact(const Part& part, const AttentionRows& rows,
                                                const at::Tensor& attended,
                                                const at::Tensor& dattended) const {
  const at::Tensor q = heads(rows.queries, part, spec_.num_heads);
  const at::Tensor out = heads(attended, part, spec_.num_heads);
  const at::Tensor dout = heads(dattended, part, spec_.num_heads);
  const at::Tensor keys = keys_of(rows.keys, part), values = keys_of(rows.values, part);
  AttentionRows grads{at::zeros(q.sizes(), q.options()), at::zeros(keys.sizes(), keys.options()),
                      at::zeros(values.sizes(), values.options())};
  int64_t first_key = 0, first_row = 0;
  for (const Document& document : part.documents) {
    const int64_t num_keys = document.num_keys();
    const at::Tensor k = keys.narrow(0, first_key, num_keys).transpose(0, 1);
    const at::Tensor v = values.narrow(0, first_key, num_keys).transpose(0, 1);
    at::Tensor dk = grads.keys.narrow(0, first_key, num_keys).transpose(0, 1);
    at::Tensor dv = grads.values.narrow(0, first_key, num_keys).transpose(0, 1);
    const int64_t most = std::max<int64_t>(1, kScoresOfPartMax / (spec_.num_heads * num_keys));
    for (int64_t begin = 0; begin < document.num_queries; begin += most) {
      const int64_t count = std::min(most, document.num_queries - begin);
      const auto some = [&](const at::Tensor& all) {
        return by_kv_head(all.narrow(0, first_row + begin, count), spec_.num_kv_heads);
      };
      const at::Tensor queries = some(q), grad = some(dout);
      const at::Tensor weights =
          weights_of(queries, k, scale(), count, document.num_cached + begin + 1);
      dv.add_(at::bmm(weights.transpose(1, 2), grad));
      const at::Tensor dot = at::sum(at::mul(grad, some(out)), {-1}, true);
      const at::Tensor dscores =
          at::bmm(grad, v.transpose(1, 2)).sub_(dot).mul_(weights).mul_(scale());
      at::Tensor rows_of_part = grads.queries.narrow(0, first_row + begin, count);
      rows_of_part.copy_(by_row(at::bmm(dscores, k), count));
      dk.add_(at::bmm(dscores.transpose(1, 2), queries));
    }
    first_key += num_keys;
    first_row += document.num_queries;
  }
  return grads;
}

/// to [rows, kv width] fp32 += the gradients of a part's keys, each added to the row of its key.
Status TrainingAttention::add_keys(const Part& part, const at::Tensor& from,
                                   const at::Tensor& to) const {
  if (!part.is_gathered) {
    heads(to, part, spec_.num_kv_heads).add_(from);
    return ok();
  }
  const at::Tensor dense = from.contiguous();
  const auto* ids = part.sums.const_data_ptr<int32_t>();
  return launched(cuda::embedding_backward({.num_ids = part.num_ids,
                                            .width = int64_t{spec_.num_kv_heads} * spec_.head_dim,
                                            .type = op_type(dense.scalar_type()),
                                            .ids = ids,
                                            .offsets = ids + part.num_ids,
                                            .row_indices = ids + 2 * part.num_ids + 1,
                                            .dy = dense.const_data_ptr(),
                                            .dtable = to.mutable_data_ptr<float>()},
                                           stream_.raw()),
                  "gradients of shared keys");
}

AttentionRows TrainingAttention::backward_part(const Part& part, const AttentionRows& rows,
                                               const at::Tensor& attended, const Kept& kept,
                                               const at::Tensor& dattended) const {
  if (attended.scalar_type() == at::kFloat) return backward_exact(part, rows, attended, dattended);
  return part.is_dense ? backward_dense(part, rows, attended, kept, dattended)
                       : backward_packed(part, rows, attended, kept, dattended);
}

Result<AttentionRows> TrainingAttention::backward(const AttentionRows& rows,
                                                  const at::Tensor& attended, const KeptParts& kept,
                                                  const at::Tensor& dattended) const {
  const auto dense = [](const at::Tensor& part) { return part.flatten(1).contiguous(); };
  if (parts_.size() == 1 && !has_gathered_) {
    const AttentionRows made =
        backward_part(parts_.front(), rows, attended, kept.front(), dattended);
    return AttentionRows{dense(made.queries), dense(made.keys), dense(made.values)};
  }
  // The gradients of a shared key come from several documents: they are added in fp32.
  const at::TensorOptions options = attended.options();
  const auto of_keys = options.dtype(has_gathered_ ? at::kFloat : attended.scalar_type());
  AttentionRows grads{at::empty(rows.queries.sizes(), options),
                      at::zeros(rows.keys.sizes(), of_keys),
                      at::zeros(rows.values.sizes(), of_keys)};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const AttentionRows made = backward_part(part, rows, attended, kept[i], dattended);
    heads(grads.queries, part, spec_.num_heads).copy_(made.queries);
    if (has_gathered_) {
      RETURN_IF_ERROR(add_keys(part, made.keys, grads.keys));
      RETURN_IF_ERROR(add_keys(part, made.values, grads.values));
    } else {
      heads(grads.keys, part, spec_.num_kv_heads).copy_(made.keys);
      heads(grads.values, part, spec_.num_kv_heads).copy_(made.values);
    }
  }
  grads.keys = grads.keys.to(attended.scalar_type());
  grads.values = grads.values.to(attended.scalar_type());
  return grads;
}

}  // namespace primerl
