#include "kernels/torch/cuda/card.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <charconv>

namespace primerl {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";
constexpr int kCapabilityMin = 8;  // what the operations are compiled for (cmake/cuda.cmake)

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

}  // namespace

int32_t card_index(std::string_view device) {
  if (!device.starts_with(kCudaPrefix)) return -1;
  const std::string_view digits = device.substr(kCudaPrefix.size());
  int32_t index = -1;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  const bool is_whole = fault == std::errc() && end == digits.data() + digits.size();
  return is_whole && index >= 0 ? index : -1;
}

std::string why_no_card(std::string_view device) {
  const int32_t card = card_index(device);
  if (card < 0) return "is no device's name: \"cpu\", \"cuda:0\", \"cuda:1\", ... are";
  int count = 0;
  if (const cudaError_t fault = cudaGetDeviceCount(&count); fault != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("this machine cannot use: {}", cudaGetErrorString(fault));
  }
  if (card >= count)
    return fmt::format("this machine has not: it has {} CUDA devices{}", count,
                       count == 0 ? "" : fmt::format(", up to cuda:{}", count - 1));
  int major = 0;
  static_cast<void>(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card));
  if (major < kCapabilityMin)
    return fmt::format("is too old: its compute capability is {}.x, {}.0 is the least", major,
                       kCapabilityMin);
  size_t free_bytes = 0, total_bytes = 0;
  const cudaError_t fault = ask_for_memory(card, free_bytes, total_bytes);
  if (fault != cudaSuccess) return fmt::format("cannot be used now: {}", cudaGetErrorString(fault));
  return {};
}

Result<CardFacts> card_facts(int32_t card) {
  size_t free_bytes = 0, total_bytes = 0;
  int processors = 0, major = 0;
  cudaError_t fault = ask_for_memory(card, free_bytes, total_bytes);
  if (fault == cudaSuccess)
    fault = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, card);
  if (fault == cudaSuccess)
    fault = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
  if (fault != cudaSuccess)
    return error(Code::kUnavailable, "cuda:{}: {}", card, cudaGetErrorString(fault));
  return CardFacts{static_cast<double>(free_bytes), static_cast<double>(total_bytes), processors,
                   major};
}

}  // namespace primerl
