/// The facts of a machine's CUDA devices, which of them engines and learners can use, and advice
/// for their errors.
///
/// Pure rules over facts, any thread, without CUDA and libtorch: facts come from the driver
/// (cuda/device.h), or from a test.
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
  double free_bytes = 0;   // free now; other processes may use it
  double total_bytes = 0;  // of the device
  int32_t num_processors = 0;
  std::string name{};            // "NVIDIA H100 80GB HBM3"; a MIG slice's name has its profile too
  int32_t capability_major = 0;  // 9 is sm_9x
  std::string fault{};           // why it cannot be used now; "": it can
};

/// Versions in CUDA's form: 13000 is 13.0.
struct CudaDriver {
  int32_t version = 0;    // the newest CUDA version that the driver runs; 0: no driver
  int32_t built_for = 0;  // the CUDA version that this program was built for
  int32_t num_cuda_devices = 0;
  std::string fault{};  // why the CUDA devices cannot be counted; "": they were
  /// CUDA_VISIBLE_DEVICES, if it is set: only the CUDA devices in it are counted.
  std::optional<std::string> visible{};
};

/// The CUDA devices of one machine.
class CudaDeviceSource {
 public:
  virtual ~CudaDeviceSource() = default;
  virtual CudaDriver driver() = 0;
  /// The facts of CUDA device [0, num_cuda_devices). May create this process's context on the
  /// device, which uses some of its memory: call it only for a device that must be used.
  virtual CudaDeviceFacts facts(int32_t index) = 0;
};

/// N of "cuda:N"; -1 of anything else.
int32_t cuda_device_index(std::string_view device);

/// Why engines and learners cannot compute on `device` ("cuda:0") of these CUDA devices, as the
/// text after "which ..."; "" if they can. It does not check whether a model fits.
std::string why_not_on_cuda_device(CudaDeviceSource& devices, std::string_view device);

/// Code::kDeviceLost: an error after which every later call of this process fails too. `doing`
/// names the computation, `name` is CUDA's name of the error ("cudaErrorIllegalAddress"), `text`
/// its description.
Error device_lost(std::string_view doing, std::string_view name, std::string_view text);

}  // namespace primerl
