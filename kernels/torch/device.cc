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

Result<DeviceRoom> room_on(std::string_view device) {
#ifdef PRIMERL_CUDA_ENGINE
  ASSIGN_OR_RETURN(const CardFacts card, card_facts(card_index(device)));
  return DeviceRoom{card.free_bytes, card.total_bytes};
#else
  return error(Code::kUnavailable, "'{}' has no memory of its own that this build could ask for",
               device);
#endif
}

}  // namespace primerl
