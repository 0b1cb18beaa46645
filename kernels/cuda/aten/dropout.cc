// Dropout of adapters by ATen. Its random numbers are 64-bit integers and are computed on the host;
// the rest is ATen.
#include <ATen/ops/empty.h>

#include "graph/base/random.h"
#include "kernels/common/parallel.h"
#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

constexpr int64_t kNumbersOfDraw = 4;  // of 16 bits each

/// The factor of each element of a row: 0 or the row's scale.
void draw_factors(const DropRow& how, uint64_t module, int64_t width, float* factors) {
  const uint64_t key = mix(how.key, module);
  for (int64_t column = 0; column < width; ++column) {
    const uint64_t bits = mix(key, static_cast<uint64_t>(column / kNumbersOfDraw));
    const uint64_t draw = bits >> (16 * (column % kNumbersOfDraw)) & 0xFFFF;
    factors[column] = draw < how.threshold ? 0.0F : how.scale;
  }
}

}  // namespace

Outcome drop_rows(const DropRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const auto bytes = args.rows * static_cast<int64_t>(sizeof(DropRow));
  const at::Tensor host = on.on_host(on.bytes(args.dropped, bytes));
  const auto* dropped = static_cast<const DropRow*>(host.const_data_ptr());
  at::Tensor names;  // each row's module
  if (args.modules != nullptr)
    names = on.on_host(on.bytes(args.modules, args.rows * static_cast<int64_t>(sizeof(uint64_t))));
  const auto module_of = [&](int64_t row) {
    return names.defined() ? static_cast<const uint64_t*>(names.const_data_ptr())[row]
                           : args.module;
  };
  const at::Tensor all_x = on.of(args.type, args.x, {args.rows, args.width});
  const at::Tensor all_y = on.of(args.type, args.y, {args.rows, args.width});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    const at::Tensor factors = at::empty({count, args.width}, at::kFloat);
    share(count, count * args.width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        draw_factors(dropped[first + row], module_of(first + row), args.width,
                     factors.mutable_data_ptr<float>() + row * args.width);
    });
    const at::Tensor by = factors.to(all_x.device());
    const at::Tensor y = all_y.narrow(0, first, count);
    // A dropped number becomes 0, even if it was NaN.
    const at::Tensor left = (all_x.narrow(0, first, count) * by).masked_fill_(by.eq(0), 0);
    y.copy_(args.adds ? left + y : left);
  });
  return {};
}

}  // namespace primerl::cuda
