/// The facts of a machine's CUDA devices, which of them engines and learners can use, and advice
/// for their errors.
///
/// Pure rules over facts, any thread, without CUDA and libtorch: where there is a driver the facts
/// are its own (cuda/device.h), in tests they are made up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// The lowest compute capability that the operations are compiled for (cmake/cuda.cmake).
inline constexpr int32_t kCudaCapabilityMin = 8;

struct CudaDeviceFacts {
  double free_bytes = 0;   // now; others may take them
  double total_bytes = 0;  // of the device
  int32_t num_processors = 0;
  std::string name{};            // "NVIDIA H100 80GB HBM3"; a MIG slice's has its profile, too
  int32_t capability_major = 0;  // 9 is sm_9x
  std::string fault{};           // why it cannot be entered now; "": it can
};

/// Versions are as CUDA writes them: 13000 is 13.0.
struct CudaDriver {
  int32_t version = 0;    // the newest CUDA that the driver runs; 0: there is no driver
  int32_t built_for = 0;  // the CUDA that this program was built for
  int32_t num_cuda_devices = 0;
  std::string fault{};  // why the CUDA devices cannot be counted; "": they were
  /// CUDA_VISIBLE_DEVICES, where it is set: CUDA devices that it does not name are not counted.
  std::optional<std::string> visible{};
};

/// The CUDA devices of one machine.
class CudaDeviceSource {
 public:
  virtual ~CudaDeviceSource() = default;
  virtual CudaDriver driver() = 0;
  /// Of CUDA device [0, num_cuda_devices). May make this process known to the CUDA device, which
  /// costs some of the device's memory: asked of one that must be used.
  virtual CudaDeviceFacts facts(int32_t index) = 0;
};

/// N of "cuda:N"; -1 of anything else.
int32_t cuda_device_index(std::string_view device);

/// Why engines and learners cannot compute on `device` ("cuda:0") of these CUDA devices, as what
/// follows "which ..."; "" where they can. Whether a model fits is another question.
std::string why_not_on_cuda_device(CudaDeviceSource& devices, std::string_view device);

/// Code::kDeviceLost: an error after which every later call of this process fails alike. `doing` is
/// what was computed, `name` CUDA's name of the error ("cudaErrorIllegalAddress"), `text` its
/// words.
Error device_lost(std::string_view doing, std::string_view name, std::string_view text);

}  // namespace primerl
