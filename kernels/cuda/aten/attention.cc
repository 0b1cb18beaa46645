// Attention of one query per row over a paged cache by ATen: the keys that any row attends to are
// gathered, and the rest is GEMMs and a softmax in fp32.
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/remainder.h>

#include <limits>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

/// Some rows and key-value heads of a call, and the positions of their keys in the cache.
struct Rows {
  int64_t first = 0, count = 0;
  int64_t first_head = 0, num_heads = 0;
  at::Tensor block, place;  // [count, keys]
  at::Tensor is_hidden;     // [count, keys] keys that the row does not attend to
};

/// [count, heads, keys, head_dim] in fp32. Hidden keys become 0: their memory may contain NaN.
at::Tensor gathered(const OnStream& on, const DecodeAttentionArgs& args, const void* memory,
                    const Rows& rows) {
  const PagedCache& cache = args.cache;
  const at::Tensor whole = on.of(
      args.type, memory, {kAnyRows, cache.block_size, args.heads.num_kv_heads, args.heads.head_dim},
      {cache.block_stride, cache.row_stride, cache.head_stride, 1});
  const at::Tensor some =
      at::index(whole.narrow(2, rows.first_head, rows.num_heads), {rows.block, rows.place});
  return wide(some).masked_fill_(rows.is_hidden.unsqueeze(-1).unsqueeze(-1), 0).transpose(1, 2);
}

void attend(const OnStream& on, const DecodeAttentionArgs& args, const Rows& rows) {
  const int64_t shared = args.heads.num_heads / args.heads.num_kv_heads, d = args.heads.head_dim;
  const int64_t sizes[] = {args.rows, args.heads.num_kv_heads, shared, d};
  const auto part_of = [&](const at::Tensor& all) {
    return all.narrow(0, rows.first, rows.count).narrow(1, rows.first_head, rows.num_heads);
  };
  const at::Tensor q = wide(part_of(on.of(args.type, args.q, sizes)));
  const at::Tensor keys = gathered(on, args, args.cache.keys, rows);
  at::Tensor scores = at::matmul(q, keys.transpose(-1, -2)).mul_(args.scale);
  scores.masked_fill_(rows.is_hidden.unsqueeze(1).unsqueeze(1),
                      -std::numeric_limits<double>::infinity());
  at::Tensor largest = scores.amax(-1, true), sinks;
  if (args.sinks != nullptr) {
    sinks = on.floats(args.sinks, {args.heads.num_kv_heads, shared, 1})
                .narrow(0, rows.first_head, rows.num_heads);
    largest = at::maximum(largest, sinks);
  }
  // A row without keys has no maximum, and gives zeros.
  largest = largest.masked_fill(largest.eq(-std::numeric_limits<double>::infinity()), 0);
  const at::Tensor weights = scores.sub_(largest).exp_();
  at::Tensor sum = weights.sum(-1, true);
  if (sinks.defined()) sum = sum + at::exp(sinks - largest);
  sum.masked_fill_(sum.eq(0), 1);
  const at::Tensor values = gathered(on, args, args.cache.values, rows);
  part_of(on.of(args.type, args.out, sizes)).copy_(at::matmul(weights, values).div_(sum));
}

/// The largest number of keys of a row; read from the device if the caller does not give it.
int64_t keys_of(const DecodeAttentionArgs& args, const at::Tensor& lengths) {
  if (args.length_max > 0) return args.length_max;
  return std::max<int64_t>(1, lengths.max().item<int32_t>());
}

}  // namespace

Outcome decode_attention(const DecodeAttentionArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor lengths = on.ints(args.lengths, {args.rows});
  const int64_t num_keys = keys_of(args, lengths), size = args.cache.block_size;
  const at::Tensor keys = at::arange(num_keys, on.options(at::kLong));
  const at::Tensor table =
      on.ints(args.block_table, {args.rows, (num_keys + size - 1) / size}, {args.table_stride, 1});
  const int64_t heads = args.heads.num_kv_heads, of_head = num_keys * args.heads.head_dim;
  // Several whole rows if they fit, else some heads of one row at a time.
  const int64_t heads_of_part = std::clamp<int64_t>(kPartNumbers / of_head, 1, heads);
  for_parts(args.rows, heads_of_part * of_head, [&](int64_t first, int64_t count) {
    Rows rows;
    rows.first = first;
    rows.count = count;
    const at::Tensor ends = lengths.narrow(0, first, count).unsqueeze(1);
    rows.is_hidden = keys.unsqueeze(0).ge(ends);
    if (args.window > 0) rows.is_hidden.logical_or_(keys.unsqueeze(0).lt(ends - args.window));
    // A row that attends to no key of a block may have no such block: it reads block 0, which
    // always exists.
    rows.block = table.narrow(0, first, count)
                     .index_select(1, keys.div(size, "floor"))
                     .masked_fill(rows.is_hidden, 0)
                     .to(at::kLong);
    rows.place = keys.remainder(size).unsqueeze(0).expand({count, num_keys});
    for (rows.first_head = 0; rows.first_head < heads; rows.first_head += heads_of_part) {
      rows.num_heads = std::min(heads_of_part, heads - rows.first_head);
      attend(on, args, rows);
    }
  });
  return {};
}

Outcome rope_decode_attention(const PagedRotaryArgs& rope, const DecodeAttentionArgs& args,
                              Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(rope, args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t size = args.cache.block_size;
  const at::Tensor last = on.ints(args.lengths, {args.rows}) - 1;
  const at::Tensor positions = last.clamp_min(0);
  const at::Tensor block = at::div(positions, size, "floor").to(at::kLong).unsqueeze(1);
  const at::Tensor blocks =
      on.ints(args.block_table, {args.rows, args.table_stride}).gather(1, block).squeeze(1);
  const at::Tensor slots =
      (blocks * size + at::remainder(positions, size)).masked_fill(last.lt(0), -1).to(at::kInt);
  const int64_t queries = int64_t{args.heads.num_heads} * args.heads.head_dim;
  const at::Tensor q = at::empty({args.rows, queries}, on.options(scalar_type(args.type)));
  PagedRotaryArgs applied = rope;
  applied.positions = positions.const_data_ptr<int32_t>();
  applied.slots = slots.const_data_ptr<int32_t>();
  applied.block_table = nullptr;
  applied.q = q.mutable_data_ptr();
  applied.cache = args.cache;
  if (const Outcome outcome = rotary(applied, stream); !outcome.is_ok()) return outcome;
  DecodeAttentionArgs attended = args;
  attended.q = q.const_data_ptr();
  return decode_attention(attended, stream);
}

int64_t decode_workspace(int64_t, const HeadShape&, int32_t) { return 0; }

}  // namespace primerl::cuda
