// GEMMs of a decode step's rows: the library's compared with small_m_gemm().
//
//   cuda_small_m_bench
//
// 28 layers of Qwen3's 0.6B shape with separate weights, as in a step without attention: norm, qkv,
// out, norm, gate and up, SwiGLU, down; and only the two GEMMs that are computed in parts. All in
// one CUDA graph, so that no launch waits for the host and weights come from memory. Bound: the
// weights of a layer, 31 MB, at 4.2 TB/s: 7.5 us. Microseconds per layer, medians of 30 [least,
// most].
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

#include "kernels/cuda/ops/cuda_tuning.h"

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
    parts_ = at::zeros({cuda::kSmallMPartsMax * kRowsMax * kHidden}, options().dtype(at::kFloat));
  }

  /// A layer's GEMMs; those with few columns by parts or by the library.
  void all(int64_t rows, bool is_in_parts) {
    for (const Layer& layer : layers_) {
      norm(rows, layer, is_in_parts);
      multiply(rows, normed_, layer.qkv, qkv_);
      add(rows, attended_, layer.out, is_in_parts);
      norm(rows, layer, is_in_parts);
      multiply(rows, normed_, layer.gate_up, gate_up_);
      done(cuda::swiglu({rows, kInner, kType, {gate_up_.data_ptr()}, activated_.data_ptr()},
                        stream()));
      add(rows, activated_, layer.down, is_in_parts);
    }
  }
  void out(int64_t rows, bool is_in_parts) {
    for (const Layer& layer : layers_) add(rows, attended_, layer.out, is_in_parts);
  }
  void down(int64_t rows, bool is_in_parts) {
    for (const Layer& layer : layers_) add(rows, activated_, layer.down, is_in_parts);
  }

 private:
  static constexpr cuda::Type kType = cuda::Type::kBfloat16;
  static at::TensorOptions options() { return at::TensorOptions(at::kCUDA).dtype(at::kBFloat16); }
  static cuda::Tuning tuning() {
    int num_processors = 0;
    expect(
        cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess,
        "no device");
    return {.num_processors = num_processors};
  }
  static at::Tensor rows_of(int64_t width) { return at::randn({kRowsMax, width}, options()); }
  static cuda::Stream stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void done(cuda::Outcome outcome) { expect(outcome.is_ok(), outcome.fault); }

  static void multiply(int64_t rows, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& y) {
    at::Tensor to = y.narrow(0, 0, rows);
    at::mm_out(to, x.narrow(0, 0, rows), weight.t());
  }
  void add(int64_t rows, const at::Tensor& x, const at::Tensor& weight, bool is_in_parts) {
    if (!is_in_parts) return multiply(rows, x, weight, delta_);
    const int64_t terms = weight.size(1), columns = weight.size(0);
    done(cuda::small_m_gemm({.rows = rows,
                             .terms = terms,
                             .columns = columns,
                             .x = x.data_ptr(),
                             .weight = weight.data_ptr(),
                             .num_parts = cuda::small_m_parts(tuning_, terms, columns),
                             .parts = parts_.data_ptr<float>()},
                            stream()));
  }
  void norm(int64_t rows, const Layer& layer, bool is_in_parts) {
    cuda::Epilogue delta = cuda::GemmOutput{delta_.data_ptr()};
    if (is_in_parts) delta = cuda::SplitKOutput{parts_.data_ptr<float>(), 4};
    done(cuda::rms_norm({.rows = rows,
                         .width = kHidden,
                         .epsilon = 1e-6F,
                         .type = kType,
                         .x = x_.data_ptr(),
                         .weight = layer.norm.data_ptr(),
                         .y = normed_.data_ptr(),
                         .residual = cuda::Residual{delta, x_.data_ptr()}},
                        stream()));
  }

  const cuda::Tuning tuning_ = tuning();
  std::vector<Layer> layers_;
  at::Tensor x_ = rows_of(kHidden), delta_ = rows_of(kHidden), normed_ = rows_of(kHidden);
  at::Tensor qkv_ = rows_of(kQkv), attended_ = rows_of(kAttended);
  at::Tensor gate_up_ = rows_of(2 * kInner), activated_ = rows_of(kInner), parts_;
};

/// Microseconds per layer of one graph.
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
  const auto compare = [&](const char* name, int64_t rows, auto launch) {
    const std::string library = time_of([&] { (layers.*launch)(rows, false); });
    const std::string own = time_of([&] { (layers.*launch)(rows, true); });
    fmt::print("  {:<6} library {:<24} in parts {}\n", name, library, own);
  };
  for (const int64_t rows : {8, 16, 32, 64}) {
    fmt::print("{} rows\n", rows);
    compare("all", rows, &Layers::all);
    compare("out", rows, &Layers::out);
    compare("down", rows, &Layers::down);
  }
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main() { return primerl::bench::run(); }
