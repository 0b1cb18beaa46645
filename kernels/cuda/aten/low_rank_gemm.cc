// GEMMs of few terms by ATen, tile by tile.
#include <ATen/ops/matmul.h>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {

Outcome add_low_rank_gemms(const LowRankGemmArgs& args, Stream stream) {
  if (args.num_tiles == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const auto bytes = args.num_tiles * static_cast<int64_t>(sizeof(AdapterTile));
  const at::Tensor host = on.on_host(on.bytes(args.tiles, bytes));
  const auto* tiles = static_cast<const AdapterTile*>(host.const_data_ptr());
  const int64_t of_weights[] = {args.is_transposed ? args.terms : args.columns,
                                args.is_transposed ? args.columns : args.terms};
  for (int64_t i = 0; i < args.num_tiles; ++i) {
    const int64_t rows = tiles[i].rows, first = tiles[i].first;
    if (rows == 0) continue;
    const auto* mine = static_cast<const uint16_t*>(args.weights) +
                       tiles[i].slot * args.slot_stride + tiles[i].group * args.group_stride;
    const at::Tensor weights = wide(on.of(Type::kBfloat16, mine, of_weights));
    const auto* from = static_cast<const uint16_t*>(args.x) + first * args.x_stride;
    auto* to = static_cast<uint16_t*>(args.y) + first * args.y_stride;
    const at::Tensor x = wide(on.of(Type::kBfloat16, from, {rows, args.terms}, {args.x_stride, 1}));
    const at::Tensor y = on.of(Type::kBfloat16, to, {rows, args.columns}, {args.y_stride, 1});
    y.copy_(wide(y) + at::matmul(x, args.is_transposed ? weights : weights.t()));
  }
  return {};
}

}  // namespace primerl::cuda
