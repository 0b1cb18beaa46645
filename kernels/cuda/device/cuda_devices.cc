#include "kernels/cuda/device/cuda_devices.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace primerl {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

std::string version_text(int32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// A driver runs programs built for its own major version and for older ones.
bool is_too_old(const CudaDriver& driver) {
  return driver.version / 1000 < driver.built_for / 1000;
}

/// A MIG slice is named after its device, then "MIG 1g.10gb".
bool is_slice(const CudaDeviceFacts& facts) {
  return facts.name.find(" MIG ") != std::string::npos;
}

std::string devices_text(int32_t count) {
  if (count == 0) return "this machine has no CUDA device";
  if (count == 1) return "this machine has 1 CUDA device, cuda:0";
  return fmt::format("this machine has {} CUDA devices, up to cuda:{}", count, count - 1);
}

std::string visible_text(const CudaDriver& driver) {
  if (!driver.visible.has_value()) return {};
  return fmt::format("; CUDA_VISIBLE_DEVICES is '{}', and no other device is seen",
                     *driver.visible);
}

struct Advice {
  std::string_view name;  // CUDA's name of the error
  std::string_view text;  // what to do
};

constexpr std::string_view kKernelAdvice =
    "the error is in a kernel, not in the device: run again with CUDA_LAUNCH_BLOCKING=1 in the "
    "place's "
    "'variables', which makes the log name the operation, and report it";
constexpr std::string_view kHardwareAdvice =
    "the error is in the device or its link: look for \"Xid\" in the kernel's log (dmesg) and at "
    "'nvidia-smi "
    "-q'; if it comes again, take the device out of service";
constexpr std::string_view kUnknownAdvice =
    "look for \"Xid\" in the kernel's log (dmesg), and at 'nvidia-smi' whether the device is still "
    "there";

constexpr Advice kAdvice[] = {
    {"cudaErrorIllegalAddress", kKernelAdvice},
    {"cudaErrorMisalignedAddress", kKernelAdvice},
    {"cudaErrorInvalidAddressSpace", kKernelAdvice},
    {"cudaErrorInvalidPc", kKernelAdvice},
    {"cudaErrorIllegalInstruction", kKernelAdvice},
    {"cudaErrorHardwareStackError", kKernelAdvice},
    {"cudaErrorAssert", kKernelAdvice},
    {"cudaErrorLaunchFailure", kKernelAdvice},
    {"cudaErrorECCUncorrectable", kHardwareAdvice},
    {"cudaErrorNvlinkUncorrectable", kHardwareAdvice},
    {"cudaErrorContained", kHardwareAdvice},
    {"cudaErrorLaunchTimeout",
     "the device also drives a screen, so its driver ends long kernels: use another device"},
};

}  // namespace

int32_t cuda_device_index(std::string_view device) {
  if (!device.starts_with(kCudaPrefix)) return -1;
  const std::string_view digits = device.substr(kCudaPrefix.size());
  int32_t index = -1;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  const bool is_whole = fault == std::errc() && end == digits.data() + digits.size();
  return is_whole && index >= 0 ? index : -1;
}

std::string why_not_on_cuda_device(CudaDeviceSource& devices, std::string_view device) {
  const int32_t index = cuda_device_index(device);
  if (index < 0)
    return "is not a device name: valid names are \"cpu\", \"cuda:0\", \"cuda:1\", ...";
  const CudaDriver driver = devices.driver();
  if (driver.version == 0)
    return "is not available: this machine has no NVIDIA driver, or 'nvidia-smi' does not find it";
  if (is_too_old(driver))
    return fmt::format(
        "cannot be used: this program was built for CUDA {}, the driver of this machine runs "
        "programs of up to {}; install a newer driver, or build with PyTorch for CUDA {}",
        version_text(driver.built_for), version_text(driver.version), driver.version / 1000);
  if (!driver.fault.empty()) return fmt::format("cannot be used: {}", driver.fault);
  if (index >= driver.num_cuda_devices)
    return fmt::format("is not available: {}{}", devices_text(driver.num_cuda_devices),
                       visible_text(driver));
  const CudaDeviceFacts facts = devices.facts(index);
  if (!facts.fault.empty()) return fmt::format("cannot be used now: {}", facts.fault);
  if (facts.capability_major < kCudaCapabilityMin)
    return fmt::format("is too old: its compute capability is {}.x, the minimum is {}.0",
                       facts.capability_major, kCudaCapabilityMin);
  if (is_slice(facts))
    return fmt::format(
        "is a MIG slice ({}): engines and learners need a whole device; name one that is not "
        "divided "
        "in CUDA_VISIBLE_DEVICES, or have its administrator turn MIG off",
        facts.name);
  return {};
}

Error device_lost(std::string_view doing, std::string_view name, std::string_view text) {
  const auto* const found = std::ranges::find(kAdvice, name, &Advice::name);
  return error(Code::kDeviceLost, "{}: the device is lost to this process: {} ({})", doing, name,
               text)
      .note(std::string(found == std::end(kAdvice) ? kUnknownAdvice : found->text));
}

}  // namespace primerl
