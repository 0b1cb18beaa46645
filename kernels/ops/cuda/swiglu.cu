// SwiGLU, forward and backward: a thread a vector.
#include "kernels/ops/cuda/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  const T* gates = static_cast<const T*>(args.gate_up) + row * 2 * args.width + at;
  float gate[kVec], up[kVec];
  load(gates, gate);
  load(gates + args.width, up);
  if (args.added != nullptr) {
    const float* added = args.added + row * 2 * args.width + at;
    add(added, gate);
    add(added + args.width, up);
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
  store(static_cast<T*>(args.activated) + row * args.width + at, gate);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluBackwardArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  const int64_t begin = row * 2 * args.width + at;
  const T* gates = static_cast<const T*>(args.gate_up) + begin;
  float gate[kVec], up[kVec], d[kVec];
  load(gates, gate);
  load(gates + args.width, up);
  load(static_cast<const T*>(args.dactivated) + row * args.width + at, d);
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    const float g = gate[j], s = sigmoid(g);
    gate[j] = d[j] * up[j] * s * (1.0F + g * (1.0F - s));
    up[j] = d[j] * g * s;
  }
  T* dgates = static_cast<T*>(args.dgate_up) + begin;
  store(dgates, gate);
  store(dgates + args.width, up);
}

template <class T, int kVec>
void start(const SwigluArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  swiglu_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}
template <class T, int kVec>
void start(const SwigluBackwardArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  swiglu_backward_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <class Args>
Outcome start_some(const Args& args, bool is_aligned, Stream stream) {
  return start_by_vectors(args, is_aligned,
                          [&]<class T, int kVec>() { start<T, kVec>(args, stream); });
}

}  // namespace

Outcome swiglu(const SwigluArgs& args, Stream stream) {
  return start_some(args, are_aligned(args.gate_up, args.activated, args.added), stream);
}

Outcome swiglu_backward(const SwigluBackwardArgs& args, Stream stream) {
  return start_some(args, are_aligned(args.gate_up, args.dactivated, args.dgate_up), stream);
}

}  // namespace primerl::cuda
