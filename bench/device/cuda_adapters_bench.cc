// The cost of adapters in a decode step, measured only by a step's launches: 28 layers of the
// Qwen3-0.6B shape, 64 rows in one CUDA graph, cuBLAS GEMMs, norms and SwiGLU, without RoPE and
// attention; 16 adapters of rank 16 on all linears, four rows each.
//
// Bound: the adapters' weights are 323 MB, 77 us at 4.2 TB/s. The aim, 0.85 of an engine's step of
// 1.57 ms, leaves 277 us for 112 linears.
//
// Prints microseconds of a step, medians of 20 [least, most], and the extra time per linear
// compared with no adapters:
//   after          add_adapters() follows the GEMM, on the same stream, and adds to y
//   beside         shrink_adapters() is on a second stream while the GEMM runs, and the next
//                  norm or SwiGLU computes the rest, as in an engine's step
//   not ahead      without prefetching the weights of the next linear
//   shrink alone   as beside, but norm and SwiGLU add nothing
//   no GEMMs       shrink_adapters() on one stream, and norm and SwiGLU, without the GEMMs
#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/ops/cuda_adapters.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace primerl::bench {
namespace {

constexpr int64_t kRows = 64, kLayers = 28, kAdapters = 16, kRank = 16;
constexpr int64_t kTiles = kRows / 8 + kAdapters + 2;  // as in the engine; most tiles have no
                                                       // adapter
constexpr int64_t kHidden = 1024, kInner = 3072;
constexpr int kTimes = 20, kReplays = 10;

enum class Way { kNone, kAfter, kBeside, kNotAhead, kShrink, kNothing, kAlone };

bool is_beside(Way way) { return way >= Way::kBeside && way <= Way::kShrink; }

at::TensorOptions bf16() { return at::TensorOptions(at::kCUDA).dtype(at::kBFloat16); }

/// One of a layer's GEMMs, and the offsets of its adapter weights.
struct Linear {
  at::Tensor weight, x, y;
  cuda::AddAdaptersArgs adapters;
  cuda::LoraDelta lora_delta;  // for the same linear
};

void check(cuda::Outcome outcome) {
  if (!outcome.is_ok()) throw std::runtime_error(outcome.fault);
}

class Step {
 public:
  Step() {
    int64_t at = 0;
    const at::Tensor normed = at::randn({kRows, kHidden}, bf16()), wide = rows(2 * kInner);
    const at::Tensor attended = rows(2048), qkv = rows(4096), inner = rows(kInner);
    for (int64_t i = 0; i < kLayers; ++i) {
      add(normed, qkv, {2048, 1024, 1024}, at);
      add(attended, delta_, {kHidden}, at);
      add(normed, wide, {kInner, kInner}, at);
      add(inner, delta_, {kHidden}, at);
    }
    slots_ = at::randn({kAdapters, at * kRank}, bf16()).mul_(0.01);
    for (Linear& linear : linears_) {
      linear.adapters.slots = slots_.const_data_ptr();
      linear.adapters.slot_stride = slots_.stride(0);
      linear.adapters.tiles = reinterpret_cast<const cuda::AdapterTile*>(tiles_.const_data_ptr());
      linear.adapters.num_tiles = kTiles;
      linear.adapters.rank_max = kRank;
      linear.adapters.workspace = workspace_.mutable_data_ptr<float>();
      linear.lora_delta = {linear.adapters, kRows,
                           reinterpret_cast<const cuda::AdapterRow*>(whose_.const_data_ptr())};
      if (std::max(cuda::adapters_workspace(linear.adapters),
                   cuda::lora_delta_workspace(linear.lora_delta)) > workspace_.numel())
        throw std::runtime_error("the workspace is too small");
    }
    std::vector<cuda::AdapterRow> whose;
    for (int32_t row = 0; row < kRows; ++row) whose.push_back({row / 4, kRank, 7, 1});
    whose_.copy_(stream_.values(std::span<const cuda::AdapterRow>(whose)));
    std::vector<cuda::AdapterTile> tiles(static_cast<size_t>(kTiles));
    for (int32_t i = 0; i < kAdapters; ++i)
      tiles[static_cast<size_t>(i)] = {4 * i, 4, i, kRank, 7, 1};
    tiles_.copy_(stream_.values(std::span<const cuda::AdapterTile>(tiles)));
  }

  const CudaStream& stream() const { return stream_; }

  void launch(Way way) {
    for (int64_t i = 0; i < kLayers; ++i) {
      Linear* of_layer = &linears_[static_cast<size_t>(4 * i)];
      norm(i > 0 ? of_layer - 1 : nullptr, of_layer[0], way);
      multiply(of_layer[0], way);
      multiply(of_layer[1], way);
      norm(of_layer + 1, of_layer[2], way);
      multiply(of_layer[2], way);
      check(cuda::swiglu({.rows = kRows,
                          .width = kInner,
                          .type = cuda::Type::kBfloat16,
                          .gate_up = {of_layer[2].y.const_data_ptr(), lora_delta(of_layer[2], way)},
                          .activated = of_layer[3].x.mutable_data_ptr()},
                         stream_.raw()));
      multiply(of_layer[3], way);
    }
  }

 private:
  static at::Tensor rows(int64_t width) { return at::randn({kRows, width}, bf16()); }
  static const cuda::LoraDelta* lora_delta(const Linear& linear, Way way) {
    const bool adds = way == Way::kBeside || way == Way::kNotAhead || way == Way::kAlone;
    return adds ? &linear.lora_delta : nullptr;
  }

  void add(const at::Tensor& x, const at::Tensor& y, const std::vector<int64_t>& widths,
           int64_t& at) {
    const int64_t terms = x.size(1);
    Linear made{at::randn({y.size(1), terms}, bf16()).mul_(0.02), x, y, {}, {}};
    made.adapters.terms = terms;
    made.adapters.columns = y.size(1);
    made.adapters.type = cuda::Type::kBfloat16;
    made.adapters.x = x.const_data_ptr();
    int64_t column = 0, a = at, b = at + std::ssize(widths) * terms;
    for (const int64_t width : widths) {
      made.adapters.parts[made.adapters.num_parts] = {column, width, a, b,
                                                      1U << made.adapters.num_parts};
      ++made.adapters.num_parts;
      column += width;
      a += terms;
      b += width;
    }
    // B, and then A of the next one.
    if (!linears_.empty()) linears_.back().adapters.next_size += std::ssize(widths) * terms;
    made.adapters.next = at + std::ssize(widths) * terms;
    made.adapters.next_size = b - made.adapters.next;
    at = b;
    linears_.push_back(made);
  }

  /// Adds the delta of `before` to the stream, then normalises.
  void norm(const Linear* before, Linear& linear, Way way) {
    const cuda::GemmOutput delta{delta_.const_data_ptr(),
                                 before != nullptr ? lora_delta(*before, way) : nullptr};
    check(cuda::rms_norm({.rows = kRows,
                          .width = kHidden,
                          .epsilon = 1e-6F,
                          .type = cuda::Type::kBfloat16,
                          .x = x_.const_data_ptr(),
                          .weight = norm_.const_data_ptr(),
                          .y = linear.x.mutable_data_ptr(),
                          .residual = cuda::Residual{delta, x_.mutable_data_ptr()}},
                         stream_.raw()));
  }

  void multiply(Linear& linear, Way way) {
    stream_.record(fork_);
    if (way < Way::kNothing) at::mm_out(linear.y, linear.x, linear.weight.t());
    if (way == Way::kNone || way == Way::kNothing) return;
    if (way == Way::kAfter) {
      cuda::AddAdaptersArgs args = linear.adapters;
      args.y = linear.y.mutable_data_ptr();
      return check(cuda::add_adapters(args, stream_.raw()));
    }
    cuda::LoraDelta lora_delta = linear.lora_delta;
    if (way == Way::kNotAhead) lora_delta.of.next_size = 0;
    if (is_beside(way)) side_.wait_for(fork_);
    check(cuda::shrink_adapters(lora_delta, is_beside(way) ? side_.raw() : stream_.raw()));
    if (!is_beside(way)) return;
    side_.record(join_);
    stream_.wait_for(join_);
  }

  const CudaStream stream_{0}, side_{0, CudaStream::Urgency::kLow};
  const CudaStream::Use use_{stream_};
  std::vector<Linear> linears_;
  at::Tensor x_ = rows(kHidden), delta_ = rows(kHidden), norm_ = at::randn({kHidden}, bf16());
  at::Tensor tiles_ = at::empty({static_cast<int64_t>(sizeof(cuda::AdapterTile)) * kTiles},
                                bf16().dtype(at::kByte));
  at::Tensor whose_ =
      at::empty({static_cast<int64_t>(sizeof(cuda::AdapterRow)) * kRows}, bf16().dtype(at::kByte));
  at::Tensor workspace_ = at::empty({1 << 20}, bf16().dtype(at::kFloat));
  at::Tensor slots_;
  c10::Event fork_{c10::DeviceType::CUDA}, join_{c10::DeviceType::CUDA};
};

struct Variant {
  const char* name;
  Way way;
  size_t base;  // index of the variant without adapters
};

double microseconds_of(at::cuda::CUDAGraph& graph, const CudaStream& stream) {
  c10::Event begin(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  stream.record(begin);
  for (int i = 0; i < kReplays; ++i) graph.replay();
  stream.record(end);
  end.synchronize();
  return 1e3 * begin.elapsedTime(end) / kReplays;
}

void run() {
  const c10::InferenceMode no_gradients;
  Step step;
  const std::vector<Variant> variants = {
      {"without", Way::kNone, 0},        {"after", Way::kAfter, 0},
      {"beside", Way::kBeside, 0},       {"not ahead", Way::kNotAhead, 0},
      {"shrink alone", Way::kShrink, 0}, {"nothing", Way::kNothing, 5},
      {"no products", Way::kAlone, 5}};
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs;
  for (const Variant& variant : variants) {
    step.launch(variant.way);
    graphs.push_back(std::make_unique<at::cuda::CUDAGraph>());
    graphs.back()->capture_begin();
    step.launch(variant.way);
    graphs.back()->capture_end();
  }
  std::vector<std::vector<double>> times(variants.size());
  for (int round = -2; round < kTimes; ++round)
    for (size_t i = 0; i < variants.size(); ++i) {
      const double time = microseconds_of(*graphs[i], step.stream());
      if (round >= 0) times[i].push_back(time);
    }
  for (size_t i = 0; i < variants.size(); ++i) {
    std::ranges::sort(times[i]);
    const auto median = [&](size_t of) { return times[of][times[of].size() / 2]; };
    fmt::print("{:<14} {:>8.1f} us [{:.1f}, {:.1f}]   {:.2f} more a linear\n", variants[i].name,
               median(i), times[i].front(), times[i].back(),
               (median(i) - median(variants[i].base)) / static_cast<double>(4 * kLayers));
  }
}

}  // namespace
}  // namespace primerl::bench

int main() {
  try {
    primerl::bench::run();
  } catch (const std::exception& fault) {
    fmt::print(stderr, "cuda_adapters_bench: {}\n", fault.what());
    return 1;
  }
  return 0;
}
