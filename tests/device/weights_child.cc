// The child process of the tests of weights between processes on CUDA devices.
//   cuda_weights_child publish FOLDER DEVICE COUNT   then waits for the end of its input
#include <unistd.h>

#include <cstdio>
#include <string>

#include "kernels/cuda/memory/device_memory.h"
#include "kernels/weights/channel.h"
#include "tests/device/device_versions.h"
#include "tests/weights/channels.h"

namespace primerl {
namespace {

int publish(const std::string& folder, int device_index, int64_t count) {
  ChannelSetup setup = channel_setup(folder);
  setup.devices = make_cuda_memory(device_index);
  setup.log = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  const auto channel = make_shm_channel(setup).value();
  DeviceBufferPool pool(setup.devices, static_cast<uint64_t>(kCudaElements) * 2, 3);
  while (pool.make()) {
  }
  for (int64_t version = 0; version < count; ++version) {
    const auto made = device_version(pool, device_index, version);
    const Status published = channel->publish(made);
    if (!published.ok()) {
      std::fprintf(stderr, "%s\n", published.error().text().c_str());
      return 1;
    }
    std::printf("published %lld %s\n", static_cast<long long>(version),
                made->device == nullptr ? "as bytes" : "on the device");
    std::fflush(stdout);
  }
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  if (argc != 5) return 3;
  return primerl::publish(argv[2], std::stoi(argv[3]), std::stoll(argv[4]));
}
