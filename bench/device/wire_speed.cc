#include "bench/device/wire_speed.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/device/timing.h"
#include "kernels/cuda/memory/device_memory.h"

namespace primerl::bench {
namespace {

constexpr uint64_t kPartMax = uint64_t{2} << 30;

/// GB/s of each run of `body`, which moves `bytes`, and the median.
double rate(const std::string& what, double bytes, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const double one = seconds_of(body);
    if (i > 1) seconds.push_back(one);
  }
  std::ranges::sort(seconds);
  const double middle = 1e-9 * bytes / median(seconds);
  fmt::print("  {:<40} {:.0f} GB/s [{:.0f}, {:.0f}]\n", what, middle, 1e-9 * bytes / seconds.back(),
             1e-9 * bytes / seconds.front());
  return middle;
}

/// Uses libtorch's NCCL, if it is loaded; its types are plain. GB/s, 0 without it.
double broadcast(const std::vector<void*>& buffers, uint64_t num_bytes,
                 const std::vector<cudaStream_t>& streams) {
  using Comm = void*;
  const auto find = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
  const auto init = reinterpret_cast<int (*)(Comm*, int, const int*)>(find("ncclCommInitAll"));
  const auto send =
      reinterpret_cast<int (*)(const void*, void*, size_t, int, int, Comm, cudaStream_t)>(
          find("ncclBroadcast"));
  const auto begin = reinterpret_cast<int (*)()>(find("ncclGroupStart"));
  const auto end = reinterpret_cast<int (*)()>(find("ncclGroupEnd"));
  if (init == nullptr || send == nullptr || begin == nullptr || end == nullptr) {
    fmt::print("  no NCCL in this libtorch\n");
    return 0;
  }
  Comm comms[2] = {};
  const int devices[2] = {0, 1};
  CHECK(init(comms, 2, devices) == 0, "NCCL does not start");
  constexpr int kBytesOfNccl = 1;  // ncclUint8
  return rate(
      fmt::format("ncclBroadcast, {:.2f} GB", 1e-9 * static_cast<double>(num_bytes)),
      static_cast<double>(num_bytes), [&] {
        CHECK(begin() == 0, "NCCL");
        for (size_t i = 0; i < 2; ++i)
          CHECK(send(buffers[1], buffers[i], num_bytes, kBytesOfNccl, 1, comms[i], streams[i]) == 0,
                "NCCL");
        CHECK(end() == 0, "NCCL");
        for (const auto& stream : streams) must(cudaStreamSynchronize(stream), "NCCL");
      });
}

/// The hardware's speed from cuda:1 to cuda:0; returns GB/s of NCCL's broadcast.
double raw(uint64_t num_bytes) {
  std::vector<void*> buffers(2);
  std::vector<cudaStream_t> streams(2);
  for (size_t i = 0; i < 2; ++i) {
    const int device_index = static_cast<int>(i);
    must(cudaSetDevice(device_index), "device");
    must(cudaMalloc(&buffers[i], num_bytes), "memory");
    must(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "stream");
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(1 - device_index, 0);
    if (enabled != cudaErrorPeerAccessAlreadyEnabled) must(enabled, "peer access");
    static_cast<void>(cudaGetLastError());
  }
  must(cudaSetDevice(0), "device");
  rate(fmt::format("peer copy, {:.2f} GB", 1e-9 * static_cast<double>(num_bytes)),
       static_cast<double>(num_bytes), [&] {
         must(cudaMemcpyAsync(buffers[0], buffers[1], num_bytes, cudaMemcpyDefault, streams[0]),
              "copy");
         must(cudaStreamSynchronize(streams[0]), "copy");
       });
  const double speed = broadcast(buffers, num_bytes, streams);
  for (void* const each : buffers) must(cudaFree(each), "memory");
  return speed;
}

}  // namespace

void copy_from(const DeviceBuffer& buffer) {
  must(cudaSetDevice(0), "device");
  const uint64_t all = buffer.num_bytes();
  const auto to = make_cuda_memory(0)->allocate(all);
  if (!to.ok()) return;
  for (const uint64_t part : {all, uint64_t{256} << 20})
    rate(fmt::format("open buffer, parts of {:.0f} MB", 1e-6 * static_cast<double>(part)),
         static_cast<double>(all), [&] {
           for (uint64_t at = 0; at < all; at += part)
             must(cudaMemcpyAsync(static_cast<std::byte*>((*to)->data()) + at,
                                  static_cast<const std::byte*>(buffer.data()) + at,
                                  std::min(part, all - at), cudaMemcpyDefault, nullptr),
                  "copy");
           must(cudaStreamSynchronize(nullptr), "copy");
         });
}

void copy_alone(uint64_t num_bytes) {
  must(cudaSetDevice(0), "device");
  const uint64_t part = std::min(num_bytes, kPartMax);
  const auto memory = make_cuda_memory(0);
  const auto from = memory->allocate(part).value(), to = memory->allocate(part).value();
  const double speed =
      rate("copy within cuda:0, read and written", 2 * static_cast<double>(part), [&] {
        must(cudaMemcpyAsync(to->data(), from->data(), part, cudaMemcpyDefault, nullptr), "copy");
        must(cudaStreamSynchronize(nullptr), "copy");
      });
  fmt::print("  {:<40} {:.3f} ms\n", "so the bound of a stop is",
             2e-6 * static_cast<double>(num_bytes) / speed);
}

/// For both sizes: a broadcast of a few bytes does not measure the wire.
void compare(uint64_t num_bytes, double seconds) {
  const double own = raw(num_bytes), large = raw(uint64_t{1} << 30);
  const double speed = 1e-9 * static_cast<double>(num_bytes) / seconds;
  if (own > 0)
    fmt::print("  {:<40} {:.0f} GB/s, {:.0f} % of ncclBroadcast, {:.0f} % of that of 1 GiB\n",
               "fetch and prepare", speed, 1e2 * speed / own, 1e2 * speed / large);
}

}  // namespace primerl::bench
