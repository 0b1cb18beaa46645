#include "kernels/torch/cuda/card.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace primerl {
namespace {

/// Asks the device itself, which fails where somebody else has it alone.
cudaError_t ask_for_memory(int32_t card, size_t& free_bytes, size_t& total_bytes) {
  int before = 0;
  cudaError_t fault = cudaGetDevice(&before);
  if (fault == cudaSuccess) fault = cudaSetDevice(card);
  if (fault == cudaSuccess) fault = cudaMemGetInfo(&free_bytes, &total_bytes);
  // The fault of one device must not be taken for that of the next call.
  if (fault != cudaSuccess) static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaSetDevice(before));
  return fault;
}

class DriverCards final : public CardSource {
 public:
  CardDriver driver() override {
    CardDriver driver;
    driver.built_for = CUDART_VERSION;
    if (cudaDriverGetVersion(&driver.version) != cudaSuccess) driver.version = 0;
    const cudaError_t fault = cudaGetDeviceCount(&driver.num_cards);
    if (fault != cudaSuccess) driver.num_cards = 0;
    if (fault != cudaSuccess && fault != cudaErrorNoDevice)
      driver.fault = cudaGetErrorString(fault);
    static_cast<void>(cudaGetLastError());
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr)
      driver.visible = visible;
    return driver;
  }

  CardFacts card(int32_t index) override {
    CardFacts facts;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t fault = ask_for_memory(index, free_bytes, total_bytes);
    cudaDeviceProp properties{};
    if (fault == cudaSuccess) fault = cudaGetDeviceProperties(&properties, index);
    if (fault != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      facts.fault = cudaGetErrorString(fault);
      return facts;
    }
    facts.free_bytes = static_cast<double>(free_bytes);
    facts.total_bytes = static_cast<double>(total_bytes);
    facts.num_processors = properties.multiProcessorCount;
    facts.name = properties.name;
    facts.capability_major = properties.major;
    return facts;
  }
};

}  // namespace

std::string why_no_card(std::string_view device) {
  DriverCards cards;
  return why_not_on_card(cards, device);
}

Result<CardFacts> card_facts(int32_t card) {
  CardFacts facts = DriverCards().card(card);
  if (!facts.fault.empty()) return error(Code::kUnavailable, "cuda:{}: {}", card, facts.fault);
  return facts;
}

}  // namespace primerl
