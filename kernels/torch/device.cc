#include "kernels/torch/device.h"

namespace primerl {

std::string why_not_on(std::string_view device) {
  if (device == "cpu") return {};
#ifdef PRIMERL_LIBTORCH_CUDA
  return "the engines and learners of this release cannot use: they compute on the CPU";
#else
  return "this build of libtorch has not: built for CPU";
#endif
}

}  // namespace primerl
