/// Memory of a test, and launches that must give the same bits when repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl::cuda_test {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

/// Uniform in [-scale, scale).
Floats random_floats(int64_t count, uint64_t key, double scale = 1);
/// The values after rounding to `type`.
Floats rounded(cuda::Type type, Floats values);
const char* name_of(cuda::Type type);

/// Memory (memory.h) with its content before each launch.
class Buffer {
 public:
  template <class T, class = std::enable_if_t<std::is_trivially_copyable_v<T>>>
  explicit Buffer(const std::vector<T>& values)
      : Buffer(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)) {}
  /// Values, rounded to `type`.
  Buffer(cuda::Type type, const Floats& values);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* get() const { return memory_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  /// Restores the initial content.
  void reset() const;
  std::vector<std::byte> bytes() const;
  Floats floats(cuda::Type type = cuda::Type::kFloat32) const;
  Ints ints() const;

 private:
  Buffer(const std::byte* from, size_t size);

  std::vector<std::byte> initial_;
  void* memory_ = nullptr;
};

/// Launches twice, and replays a CUDA graph of the launch if the operations can be captured:
/// `outputs`, reset before each, must have the same bits. They contain the last result.
void expect_one_answer(const std::function<cuda::Outcome(cuda::Stream)>& launch,
                       const std::vector<const Buffer*>& outputs);

/// |got - want| <= absolute + relative * |want|; NaN equals NaN.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};
/// `absolute` is for fp32 additions in another order, plus the rounding of `type`: 1e-5 relative in
/// fp32, 1/256 in bf16.
Tolerance tolerance_of(cuda::Type type, double absolute);
void expect_near(const Floats& got, const Floats& want, Tolerance tolerance, const char* what);

/// Milliseconds of one launch among `count` in a row on a device, after a warm-up.
double milliseconds_of(const std::function<cuda::Outcome(cuda::Stream)>& launch, int count);

}  // namespace primerl::cuda_test
