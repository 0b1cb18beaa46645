// LoRA deltas by ATen: tile by tile, each padded to the same number of rows, so that a row has the
// same bits in any tile.
#include "kernels/cuda/aten/adapters.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <span>

namespace primerl::cuda {
namespace {

/// Calls body(tile, part, index of the part) for each part that adds something.
template <class Body>
void for_adapted(const OnStream& on, const AddAdaptersArgs& args, const Body& body) {
  const auto bytes = args.num_tiles * static_cast<int64_t>(sizeof(AdapterTile));
  const at::Tensor host = on.on_host(on.bytes(args.tiles, bytes));
  const std::span tiles(static_cast<const AdapterTile*>(host.const_data_ptr()),
                        static_cast<size_t>(args.num_tiles));
  for (const AdapterTile& tile : tiles)
    for (int32_t i = 0; i < args.num_parts && tile.rows > 0 && tile.rank > 0; ++i)
      if ((tile.targets & args.parts[i].target) != 0) body(tile, args.parts[i], i);
}

/// The values of a tile's slot, from `at` of each rank on.
at::Tensor numbers_of(const OnStream& on, const AddAdaptersArgs& args, const AdapterTile& tile,
                      int64_t at, at::IntArrayRef sizes) {
  const int64_t element = args.type == Type::kFloat32 ? 4 : 2;
  const int64_t first =
      tile.slot * args.slot_stride + (tile.group * args.group_stride + at) * tile.rank;
  return wide(on.of(args.type, static_cast<const std::byte*>(args.slots) + first * element, sizes));
}

/// The rows of a tile, padded to the rows of the largest tile by repeating the last one.
at::Tensor rows_of(const OnStream& on, const AdapterTile& tile, const at::Tensor& all) {
  const at::Tensor indices = at::arange(kAdapterTileRows, on.options(at::kLong))
                                 .clamp_max_(tile.rows - 1)
                                 .add_(tile.first);
  return wide(all.index_select(0, indices));
}

/// scaling * A x
at::Tensor shrunk(const OnStream& on, const AddAdaptersArgs& args, const AdapterTile& tile,
                  const AdapterPart& part) {
  const at::Tensor a = numbers_of(on, args, tile, part.a, {tile.rank, args.terms});
  const at::Tensor x = rows_of(on, tile, on.of(args.type, args.x, {kAnyRows, args.terms}));
  return at::matmul(x, a.t()).mul_(tile.scaling);
}
/// B times that, for the tile's rows.
at::Tensor expanded(const OnStream& on, const AddAdaptersArgs& args, const AdapterTile& tile,
                    const AdapterPart& part, const at::Tensor& u) {
  const at::Tensor b = numbers_of(on, args, tile, part.b, {part.columns, tile.rank});
  return at::matmul(u, b.t()).narrow(0, 0, tile.rows);
}

/// [num_rows, parts, rank_max]
at::Tensor workspace_of(const OnStream& on, const LoraDelta& lora_delta) {
  return on.floats(lora_delta.of.workspace,
                   {lora_delta.num_rows, lora_delta.of.num_parts, lora_delta.of.rank_max});
}

}  // namespace

int64_t adapters_workspace(const AddAdaptersArgs&) { return 0; }

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const Type type = args.has_fp32_y ? Type::kFloat32 : args.type;
  const at::Tensor y = on.of(type, args.y, {kAnyRows, args.columns});
  for_adapted(on, args, [&](const AdapterTile& tile, const AdapterPart& part, int32_t) {
    const at::Tensor to = y.narrow(0, tile.first, tile.rows).narrow(1, part.column, part.columns);
    to.copy_(wide(to) + expanded(on, args, tile, part, shrunk(on, args, tile, part)));
  });
  return {};
}

int64_t lora_delta_workspace(const LoraDelta& lora_delta) {
  return lora_delta.num_rows * lora_delta.of.num_parts * lora_delta.of.rank_max;
}

Outcome shrink_adapters(const LoraDelta& lora_delta, Stream stream) {
  const AddAdaptersArgs& args = lora_delta.of;
  if (lora_delta.num_rows == 0 || args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(lora_delta); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor all = workspace_of(on, lora_delta);
  for_adapted(on, args, [&](const AdapterTile& tile, const AdapterPart& part, int32_t index) {
    all.select(1, index)
        .narrow(0, tile.first, tile.rows)
        .narrow(1, 0, tile.rank)
        .copy_(shrunk(on, args, tile, part).narrow(0, 0, tile.rows));
  });
  return {};
}

at::Tensor added_of(const OnStream& on, const LoraDelta& lora_delta) {
  const AddAdaptersArgs& args = lora_delta.of;
  at::Tensor sums = at::zeros({lora_delta.num_rows, args.columns}, on.options(at::kFloat));
  if (args.num_tiles == 0 || args.num_parts == 0) return sums;
  const at::Tensor all = workspace_of(on, lora_delta);
  for_adapted(on, args, [&](const AdapterTile& tile, const AdapterPart& part, int32_t index) {
    const at::Tensor u = rows_of(on, tile, all.select(1, index)).narrow(1, 0, tile.rank);
    sums.narrow(0, tile.first, tile.rows)
        .narrow(1, part.column, part.columns)
        .copy_(expanded(on, args, tile, part, u));
  });
  return sums;
}

}  // namespace primerl::cuda
