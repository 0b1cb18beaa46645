#include "kernels/torch/device.h"

#ifdef PRIMERL_CUDA_ENGINE
#include "kernels/torch/cuda/card.h"
#endif

namespace primerl {

std::string why_not_on(std::string_view device) {
  if (device == "cpu") return {};
#if !defined(PRIMERL_LIBTORCH_CUDA)
  return "this build of libtorch has not: built for CPU";
#elif !defined(PRIMERL_CUDA_ENGINE)
  return "this build cannot use: the CUDA operations are not in it, since there was no nvcc";
#else
  return why_no_card(device);
#endif
}

}  // namespace primerl
