// Norm of q and k, rotary embedding and the write to a paged cache by ATen.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/where.h>

#include "kernels/cuda/aten/adapters.h"

namespace primerl::cuda {
namespace {

/// The angles of some rows: [rows, 1, rotary_dim / 2].
struct RopeAngles {
  at::Tensor cosine, sine;
};

template <class Args>
RopeAngles angles_of(const OnStream& on, const Args& args, int64_t first, int64_t count) {
  const int64_t half = args.rotary_dim / 2;
  if (half == 0) return {};
  const at::Tensor positions = on.ints(args.positions + first, {count});
  const auto rows_of = [&](const float* table) {
    return at::index_select(on.floats(table, {kAnyRows, half}), 0, positions).unsqueeze(1);
  };
  return {rows_of(args.cosine), rows_of(args.sine)};
}

/// Heads [rows, heads, head_dim] rotated by their angles, or back.
at::Tensor rotated(const at::Tensor& x, const RopeAngles& angles, bool is_back) {
  if (!angles.cosine.defined()) return x;
  const int64_t half = angles.cosine.size(-1), d = x.size(-1);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor sine = is_back ? -angles.sine : angles.sine;
  return at::cat({a * angles.cosine - b * sine, b * angles.cosine + a * sine,
                  x.narrow(-1, 2 * half, d - 2 * half)},
                 -1);
}

at::Tensor inverse_rms(const at::Tensor& x, float epsilon) {
  return at::rsqrt((x * x).mean(-1, true).add_(epsilon));
}

/// The slot of each row; undefined: row r goes to slot r.
at::Tensor slots_of(const OnStream& on, const PagedRotaryArgs& args) {
  if (args.slots != nullptr) return on.ints(args.slots, {args.rows}).to(at::kLong);
  if (args.block_table == nullptr) return {};
  const int64_t size = args.cache.block_size;
  const at::Tensor positions = on.ints(args.positions, {args.rows}).to(at::kLong);
  const at::Tensor table = on.ints(args.block_table, {args.rows, args.table_stride});
  const at::Tensor blocks = table.gather(1, positions.div(size, "floor").unsqueeze(1)).squeeze(1);
  return blocks.to(at::kLong).mul_(size).add_(positions.remainder(size));
}

/// Writes rows [rows, num_kv_heads, head_dim] to their slots. A row with a negative slot writes the
/// values of another row, or the values already there. So the host does not need the number of
/// written rows.
void write_rows(const at::Tensor& cache, const at::Tensor& slots, const at::Tensor& rows) {
  const int64_t size = cache.size(1);
  const at::Tensor goes = slots.ge(0);
  const at::Tensor all = at::arange(slots.size(0), slots.options());
  const at::Tensor source = at::where(goes, all, goes.to(at::kInt).argmax(0));
  const at::Tensor to = at::index_select(slots, 0, source).clamp_min(0);
  const at::Tensor block = to.div(size, "floor"), place = to.remainder(size);
  const at::Tensor there = at::index(cache, {block, place});
  at::Tensor values = at::where(goes.any(), at::index_select(rows, 0, source), there);
  at::Tensor written = cache;
  written.index_put_({block, place}, values);
}

void write_cache(const OnStream& on, const PagedRotaryArgs& args, void* memory, int64_t first,
                 const at::Tensor& slots, const at::Tensor& rows) {
  if (memory == nullptr) return;
  const PagedCache& cache = args.cache;
  const int64_t heads = args.heads.num_kv_heads, d = args.heads.head_dim, count = rows.size(0);
  const int64_t size = cache.block_size;
  const at::Tensor whole = on.of(args.type, memory, {kAnyRows, size, heads, d},
                                 {cache.block_stride, cache.row_stride, cache.head_stride, 1});
  if (!slots.defined() && size == 1)
    whole.narrow(0, first, count).select(1, 0).copy_(rows);
  else if (!slots.defined())
    write_rows(whole, at::arange(first, first + count, on.options(at::kLong)), rows);
  else
    write_rows(whole, slots.narrow(0, first, count), rows);
}

/// The gradient of heads from the gradient of their result; adds the gradient of the weight.
at::Tensor gradient_of_heads(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& weight,
                             const at::Tensor& dweight, const RopeAngles& angles, float epsilon) {
  const at::Tensor back = rotated(wide(dy), angles, true);
  if (!weight.defined()) return back;
  const at::Tensor heads = wide(x), inverse = inverse_rms(heads, epsilon);
  const at::Tensor normed = heads * inverse;
  at::Tensor sum = dweight;
  const int64_t rows_and_heads[] = {0, 1};
  sum.add_((back * normed).sum(rows_and_heads));
  const at::Tensor grad = back * weight;
  return (grad - normed * (grad * normed).mean(-1, true)).mul_(inverse);
}

}  // namespace

Outcome rotary(const PagedRotaryArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int64_t heads = num_heads + int64_t{2} * num_kv_heads;
  const at::Tensor qkv = on.of(args.type, args.qkv.data, {args.rows, heads, d});
  const at::Tensor q = on.of(args.type, args.q, {args.rows, num_heads, d});
  const at::Tensor slots = slots_of(on, args);
  at::Tensor added;
  if (args.qkv.lora_delta != nullptr) added = added_of(on, *args.qkv.lora_delta).view(qkv.sizes());
  for_parts(args.rows, heads * d, [&](int64_t first, int64_t count) {
    const RopeAngles angles = angles_of(on, args, first, count);
    at::Tensor rows = qkv.narrow(0, first, count);
    if (added.defined()) rows = rows + added.narrow(0, first, count);
    const auto normed_and_rotated = [&](const at::Tensor& of, const void* weight) {
      at::Tensor x = wide(of);
      if (weight != nullptr)
        x = (x * inverse_rms(x, args.epsilon)).mul_(on.of(args.type, weight, {d}));
      return rotated(x, angles, false);
    };
    q.narrow(0, first, count)
        .copy_(normed_and_rotated(rows.narrow(1, 0, num_heads), args.q_weight));
    const at::Tensor keys =
        normed_and_rotated(rows.narrow(1, num_heads, num_kv_heads), args.k_weight);
    write_cache(on, args, args.cache.keys, first, slots, keys.to(qkv.scalar_type()));
    write_cache(on, args, args.cache.values, first, slots,
                rows.narrow(1, num_heads + num_kv_heads, num_kv_heads).to(qkv.scalar_type()));
  });
  return {};
}

int64_t rotary_workspace(int64_t, int32_t) { return 0; }

Outcome rotary_backward(const RotaryBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int64_t heads = num_heads + int64_t{2} * num_kv_heads;
  const auto weight_of = [&](const void* weight) {
    return weight == nullptr ? at::Tensor() : wide(on.of(args.type, weight, {args.heads.head_dim}));
  };
  const auto gradient_of = [&](const void* weight, const float* grad) {
    return weight == nullptr ? at::Tensor() : on.floats(grad, {args.heads.head_dim});
  };
  const auto part_of = [&](const void* rows, int64_t count_of_heads) {
    return on.of(args.type, rows, {args.rows, count_of_heads, args.heads.head_dim});
  };
  const at::Tensor q_weight = weight_of(args.q_weight), k_weight = weight_of(args.k_weight);
  const at::Tensor dq_weight = gradient_of(args.q_weight, args.dq_weight);
  const at::Tensor dk_weight = gradient_of(args.k_weight, args.dk_weight);
  const at::Tensor qkv = part_of(args.qkv, heads), dqkv = part_of(args.dqkv, heads);
  const at::Tensor dq = part_of(args.dq, num_heads), dkeys = part_of(args.dkeys, num_kv_heads);
  const at::Tensor dvalues = part_of(args.dvalues, num_kv_heads);
  for_parts(
      args.rows, heads * d,
      [&, num_heads = num_heads, num_kv_heads = num_kv_heads](int64_t first, int64_t count) {
        const RopeAngles angles = angles_of(on, args, first, count);
        const at::Tensor x = qkv.narrow(0, first, count), to = dqkv.narrow(0, first, count);
        to.narrow(1, 0, num_heads)
            .copy_(gradient_of_heads(x.narrow(1, 0, num_heads), dq.narrow(0, first, count),
                                     q_weight, dq_weight, angles, args.epsilon));
        to.narrow(1, num_heads, num_kv_heads)
            .copy_(gradient_of_heads(x.narrow(1, num_heads, num_kv_heads),
                                     dkeys.narrow(0, first, count), k_weight, dk_weight, angles,
                                     args.epsilon));
        to.narrow(1, num_heads + num_kv_heads, num_kv_heads).copy_(dvalues.narrow(0, first, count));
      });
  return {};
}

}  // namespace primerl::cuda
