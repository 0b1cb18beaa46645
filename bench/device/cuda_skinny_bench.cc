// Products of a decode step's rows, the library's beside skinny_product().
//
//   cuda_skinny_bench
//
// 28 layers of Qwen3's 0.6B shape with weights of their own, as a step has them but for attention:
// norm, qkv, out, norm, gate and up, SwiGLU, down; and each product alone. All in one CUDA graph,
// so that no launch waits for the host and weights come from memory. Bound: the weights of a layer,
// 31 MB, at 4.2 TB/s: 7.5 us. Microseconds a layer, medians of 30 [least, most].
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/ops/cuda_products.h"

namespace primerl::bench {
namespace {

constexpr int kLayers = 28, kRepeats = 30;
constexpr int64_t kHidden = 1024, kAttended = 2048, kQkv = 4096, kInner = 3072, kRowsMax = 64;

void expect(bool is_so, const char* fault) {
  if (!is_so) throw std::runtime_error(fault);
}

struct Layer {
  at::Tensor norm, qkv, out, gate_up, down;
};

class Layers {
 public:
  Layers() {
    const auto random = [](at::IntArrayRef sizes) {
      return at::randn(sizes, options()).mul_(0.02);
    };
    for (int i = 0; i < kLayers; ++i)
      layers_.push_back({random({kHidden}), random({kQkv, kHidden}), random({kHidden, kAttended}),
                         random({2 * kInner, kHidden}), random({kHidden, kInner})});
    parts_ = at::zeros({cuda::kSkinnyPartsMax * kRowsMax * kHidden}, options().dtype(at::kFloat));
  }

  /// All products, or the one of that number.
  void library(int64_t rows, int product) {
    for (const Layer& layer : layers_) {
      if (product < 0) norm(rows, layer, false);
      if (product < 0 || product == 0) multiply(rows, normed_, layer.qkv, qkv_);
      if (product < 0 || product == 1) multiply(rows, attended_, layer.out, addend_);
      if (product < 0) norm(rows, layer, false);
      if (product < 0 || product == 2) multiply(rows, normed_, layer.gate_up, gate_up_);
      if (product < 0 || product == 2)
        done(cuda::swiglu({rows, kInner, kType, gate_up_.data_ptr(), activated_.data_ptr()},
                          stream()));
      if (product < 0 || product == 3) multiply(rows, activated_, layer.down, addend_);
    }
  }
  void own(int64_t rows, int product) {
    for (const Layer& layer : layers_) {
      if (product < 0) norm(rows, layer, true);
      if (product < 0 || product == 0)
        skinny(rows, normed_, layer.qkv, {.y = qkv_.data_ptr()});
      if (product < 0 || product == 1) add(rows, attended_, layer.out);
      if (product < 0) norm(rows, layer, true);
      if (product < 0 || product == 2)
        skinny(rows, normed_, layer.gate_up, {.is_gated = true, .y = activated_.data_ptr()});
      if (product < 0 || product == 3) add(rows, activated_, layer.down);
    }
  }

  /// Ours where the answer is in parts.
  void mixed(int64_t rows) {
    for (const Layer& layer : layers_) {
      norm(rows, layer, true);
      multiply(rows, normed_, layer.qkv, qkv_);
      add(rows, attended_, layer.out);
      norm(rows, layer, true);
      multiply(rows, normed_, layer.gate_up, gate_up_);
      done(cuda::swiglu({rows, kInner, kType, gate_up_.data_ptr(), activated_.data_ptr()},
                        stream()));
      add(rows, activated_, layer.down);
    }
  }

 private:
  static constexpr cuda::Type kType = cuda::Type::kBfloat16;
  static at::TensorOptions options() { return at::TensorOptions(at::kCUDA).dtype(at::kBFloat16); }
  static at::Tensor rows_of(int64_t width) { return at::randn({kRowsMax, width}, options()); }
  static cuda::Stream stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void done(cuda::Outcome outcome) { expect(outcome.is_ok(), outcome.fault); }

  static void multiply(int64_t rows, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& y) {
    at::Tensor to = y.narrow(0, 0, rows);
    at::mm_out(to, x.narrow(0, 0, rows), weight.t());
  }
  static void skinny(int64_t rows, const at::Tensor& x, const at::Tensor& weight,
                     cuda::SkinnyArgs args) {
    args.rows = rows;
    args.terms = weight.size(1);
    args.columns = weight.size(0);
    args.x = x.data_ptr();
    args.weight = weight.data_ptr();
    done(cuda::skinny_product(args, stream()));
  }
  void add(int64_t rows, const at::Tensor& x, const at::Tensor& weight) {
    skinny(rows, x, weight,
           {.parts = parts_.data_ptr<float>(),
            .num_parts = cuda::skinny_parts(weight.size(1), weight.size(0))});
  }
  void norm(int64_t rows, const Layer& layer, bool is_in_parts) {
    done(cuda::rms_norm({.rows = rows,
                         .width = kHidden,
                         .epsilon = 1e-6F,
                         .type = kType,
                         .x = x_.data_ptr(),
                         .delta = is_in_parts ? nullptr : addend_.data_ptr(),
                         .weight = layer.norm.data_ptr(),
                         .sum = x_.data_ptr(),
                         .y = normed_.data_ptr(),
                         .parts = is_in_parts ? parts_.data_ptr<float>() : nullptr,
                         .num_parts = is_in_parts ? 4 : 0},
                        stream()));
  }

  std::vector<Layer> layers_;
  at::Tensor x_ = rows_of(kHidden), addend_ = rows_of(kHidden), normed_ = rows_of(kHidden);
  at::Tensor qkv_ = rows_of(kQkv), attended_ = rows_of(kAttended);
  at::Tensor gate_up_ = rows_of(2 * kInner), activated_ = rows_of(kInner), parts_;
};

/// Microseconds a layer of one graph.
std::string time_of(const std::function<void()>& launch) {
  launch();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  launch();
  graph.capture_end();
  cudaEvent_t begin, end;
  expect(cudaEventCreate(&begin) == cudaSuccess, "no event");
  expect(cudaEventCreate(&end) == cudaSuccess, "no event");
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  std::vector<float> layers;
  for (int i = 0; i < kRepeats + 2; ++i) {
    expect(cudaEventRecord(begin, stream) == cudaSuccess, "not recorded");
    graph.replay();
    expect(cudaEventRecord(end, stream) == cudaSuccess, "not recorded");
    expect(cudaEventSynchronize(end) == cudaSuccess, "the device failed");
    float milliseconds = 0;
    expect(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess, "no time");
    if (i >= 2) layers.push_back(1e3F * milliseconds / kLayers);
  }
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  std::ranges::sort(layers);
  return fmt::format("{:6.2f} [{:.2f}, {:.2f}]", layers[layers.size() / 2], layers.front(),
                     layers.back());
}

int run() {
  const c10::InferenceMode no_gradients;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  Layers layers;
  const char* names[] = {"qkv", "out", "gate, up and SwiGLU", "down"};
  for (const int64_t rows : {8, 16, 32, 64}) {
    fmt::print("{} rows\n", rows);
    for (int product = -1; product < 4; ++product) {
      const std::string library = time_of([&] { layers.library(rows, product); });
      const std::string own = time_of([&] { layers.own(rows, product); });
      fmt::print("  {:<22} library {:<24} own {}\n", product < 0 ? "all" : names[product], library,
                 own);
    }
    fmt::print("  {:<22} {}\n", "all, own out and down", time_of([&] { layers.mixed(rows); }));
  }
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main() { return primerl::bench::run(); }
