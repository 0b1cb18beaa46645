// What adapters add to a product by ATen: tile by tile, each of as many rows, so that a row has the
// same bits in any tile.
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>

#include "kernels/torch/aten/on_stream.h"

namespace primerl::cuda {
namespace {

/// Null sums: of y.
at::Tensor columns_of(const OnStream& on, const AddAdaptersArgs& args, const AdapterTile& tile,
                      const AdapterPart& part) {
  const int64_t sizes[] = {kAnyRows, args.columns};
  return (args.sums != nullptr ? on.floats(args.sums, sizes) : on.of(args.type, args.y, sizes))
      .narrow(0, tile.first, tile.rows)
      .narrow(1, part.column, part.columns);
}

void add_tile(const OnStream& on, const AddAdaptersArgs& args, const AdapterTile& tile,
              const AdapterPart& part) {
  const int64_t rank = tile.rank, element = args.type == Type::kFloat32 ? 4 : 2;
  const int64_t first = tile.slot * args.slot_stride + tile.group * args.group_stride * rank;
  const auto* slot = static_cast<const std::byte*>(args.slots) + first * element;
  const at::Tensor a = wide(on.of(args.type, slot + part.a * rank * element, {rank, args.terms}));
  const at::Tensor b = wide(on.of(args.type, slot + part.b * rank * element, {part.columns, rank}));
  const at::Tensor places = at::arange(kAdapterTileRows, on.options(at::kLong))
                                .clamp_max_(tile.rows - 1)
                                .add_(tile.first);
  const at::Tensor x =
      wide(on.of(args.type, args.x, {kAnyRows, args.terms}).index_select(0, places));
  const at::Tensor added = at::matmul(at::matmul(x, a.t()).mul_(tile.scaling), b.t());
  const at::Tensor to = columns_of(on, args, tile, part);
  const at::Tensor of_rows = added.narrow(0, 0, tile.rows);
  to.copy_(args.sums != nullptr ? of_rows : wide(to) + of_rows);
}

}  // namespace

int64_t adapters_workspace(const AddAdaptersArgs&) { return 0; }

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const auto bytes = args.num_tiles * static_cast<int64_t>(sizeof(AdapterTile));
  const at::Tensor host = on.on_host(on.bytes(args.tiles, bytes));
  const auto* tiles = static_cast<const AdapterTile*>(host.const_data_ptr());
  for (int64_t i = 0; i < args.num_tiles; ++i)
    for (int32_t j = 0; j < args.num_parts && tiles[i].rows > 0; ++j)
      if (tiles[i].rank > 0 && (tiles[i].targets & args.parts[j].target) != 0)
        add_tile(on, args, tiles[i], args.parts[j]);
      else if (args.sums != nullptr)
        columns_of(on, args, tiles[i], args.parts[j]).zero_();
  return {};
}

}  // namespace primerl::cuda
