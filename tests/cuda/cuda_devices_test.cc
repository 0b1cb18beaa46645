// Every refusal of a CUDA device, with simulated machines: no CUDA device is needed or used.
#include "kernels/cuda/device/cuda_devices.h"

#include <gtest/gtest.h>

#include <vector>

namespace primerl {
namespace {

/// A simulated machine.
class MadeUpDevices final : public CudaDeviceSource {
 public:
  CudaDriver driver() override {
    CudaDriver said = driver_facts;
    if (said.fault.empty()) said.num_cuda_devices = static_cast<int32_t>(devices.size());
    return said;
  }
  CudaDeviceFacts facts(int32_t index) override {
    ++num_entered;
    return devices.at(static_cast<size_t>(index));
  }

  CudaDriver driver_facts{.version = 13000, .built_for = 13000};
  std::vector<CudaDeviceFacts> devices;
  int32_t num_entered = 0;
};

CudaDeviceFacts h100() {
  return {.free_bytes = 79e9,
          .total_bytes = 85e9,
          .num_processors = 132,
          .name = "NVIDIA H100 80GB HBM3",
          .capability_major = 9};
}

MadeUpDevices machine_of(size_t num_cuda_devices) {
  MadeUpDevices machine;
  machine.devices.assign(num_cuda_devices, h100());
  return machine;
}

std::string why(MadeUpDevices machine, std::string_view device = "cuda:0") {
  return why_not_on_cuda_device(machine, device);
}

TEST(CudaDevices, OneThatIsThereAndFreeIsUsed) {
  EXPECT_EQ(why(machine_of(1)), "");
  EXPECT_EQ(why(machine_of(8), "cuda:7"), "");
}

TEST(CudaDevices, OneThatIsNotThereIsNamedWithThoseThatAre) {
  EXPECT_EQ(why(machine_of(0)), "is not available: this machine has no CUDA device");
  EXPECT_EQ(why(machine_of(1), "cuda:1"),
            "is not available: this machine has 1 CUDA device, cuda:0");
  EXPECT_EQ(why(machine_of(4), "cuda:4"),
            "is not available: this machine has 4 CUDA devices, up to cuda:3");
}

TEST(CudaDevices, TheVariableThatHidesSomeIsNamedWithItsValue) {
  MadeUpDevices machine = machine_of(1);
  machine.driver_facts.visible = "7,MIG-1";
  EXPECT_EQ(why(machine), "");
  EXPECT_EQ(why(machine, "cuda:1"),
            "is not available: this machine has 1 CUDA device, cuda:0; CUDA_VISIBLE_DEVICES is "
            "'7,MIG-1', and no other device is seen");
  machine = machine_of(0);
  machine.driver_facts.visible = "";
  EXPECT_EQ(
      why(machine),
      "is not available: this machine has no CUDA device; CUDA_VISIBLE_DEVICES is '', and no other "
      "device is seen");
}

TEST(CudaDevices, AnUnknownSpellingIsRefusedBeforeTheMachineIsAsked) {
  for (const char* name : {"cuda:x", "gpu:0", "cuda", "cuda:", "cuda:-1", "cuda:0 ", "CUDA:0"})
    EXPECT_EQ(why(machine_of(1), name),
              "is not a device name: valid names are \"cpu\", \"cuda:0\", \"cuda:1\", ...")
        << name;
}

TEST(CudaDevices, ADriverOlderThanTheBuildIsNamedWithBothVersions) {
  MadeUpDevices machine = machine_of(1);
  machine.driver_facts.version = 12040;
  EXPECT_EQ(why(machine),
            "cannot be used: this program was built for CUDA 13.0, the driver of this machine runs "
            "programs of up to 12.4; install a newer driver, or build with PyTorch for CUDA 12");
  machine.driver_facts.version = 12080;
  machine.driver_facts.built_for = 12090;
  EXPECT_EQ(why(machine), "") << "a driver runs all programs of its major version";
  machine.driver_facts.version = 13000;
  EXPECT_EQ(why(machine), "") << "and older ones";
}

TEST(CudaDevices, AMachineWithoutADriverSaysSo) {
  MadeUpDevices machine = machine_of(0);
  machine.driver_facts.version = 0;
  EXPECT_EQ(
      why(machine),
      "is not available: this machine has no NVIDIA driver, or 'nvidia-smi' does not find it");
}

TEST(CudaDevices, AFaultOfTheDriverIsKept) {
  MadeUpDevices machine = machine_of(1);
  machine.driver_facts.fault = "system not yet initialized";
  EXPECT_EQ(why(machine), "cannot be used: system not yet initialized");
}

TEST(CudaDevices, ABusyOneIsNamedWithItsReason) {
  MadeUpDevices machine = machine_of(2);
  machine.devices[1] = {};
  machine.devices[1].fault = "CUDA-capable device(s) is/are busy or unavailable";
  EXPECT_EQ(why(machine, "cuda:0"), "");
  EXPECT_EQ(why(machine, "cuda:1"),
            "cannot be used now: CUDA-capable device(s) is/are busy or unavailable");
}

TEST(CudaDevices, OneThatIsTooOldIsNamedWithTheLeast) {
  MadeUpDevices machine = machine_of(1);
  machine.devices[0].capability_major = kCudaCapabilityMin - 1;
  EXPECT_EQ(why(machine), "is too old: its compute capability is 7.x, the minimum is 8.0");
  machine.devices[0].capability_major = kCudaCapabilityMin;
  EXPECT_EQ(why(machine), "");
}

TEST(CudaDevices, ASliceIsRefused) {
  MadeUpDevices machine = machine_of(1);
  machine.devices[0].name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  EXPECT_EQ(
      why(machine),
      "is a MIG slice (NVIDIA H100 80GB HBM3 MIG 1g.10gb): engines and learners need a whole "
      "device; name one that is not divided in CUDA_VISIBLE_DEVICES, or have its administrator "
      "turn MIG off");
}

TEST(CudaDevices, OnlyTheOneThatIsAskedForIsEntered) {
  MadeUpDevices machine = machine_of(8);
  EXPECT_EQ(why_not_on_cuda_device(machine, "cuda:3"), "");
  EXPECT_EQ(machine.num_entered, 1);
  EXPECT_NE(why_not_on_cuda_device(machine, "cuda:8"), "");
  EXPECT_EQ(machine.num_entered, 1);
}

TEST(ALostDevice, IsNamedWithWhatWasComputedAndWhatToDo) {
  EXPECT_EQ(device_lost("engine step 512", "cudaErrorIllegalAddress",
                        "an illegal memory access was encountered")
                .text(),
            "engine step 512: the device is lost to this process: cudaErrorIllegalAddress (an "
            "illegal memory access was encountered)\n"
            "   the error is in a kernel, not in the device: run again with CUDA_LAUNCH_BLOCKING=1 "
            "in the "
            "place's 'variables', which makes the log name the operation, and report it");
  EXPECT_EQ(device_lost("training step 3", "cudaErrorECCUncorrectable",
                        "uncorrectable ECC error encountered")
                .text(),
            "training step 3: the device is lost to this process: cudaErrorECCUncorrectable "
            "(uncorrectable ECC error encountered)\n"
            "   the error is in the device or its link: look for \"Xid\" in the kernel's log "
            "(dmesg) and at "
            "'nvidia-smi -q'; if it comes again, take the device out of service");
  EXPECT_EQ(
      device_lost("new weights", "cudaErrorUnknown", "unknown error").notes().front(),
      "look for \"Xid\" in the kernel's log (dmesg), and at 'nvidia-smi' whether the device is "
      "still there");
}

}  // namespace
}  // namespace primerl
