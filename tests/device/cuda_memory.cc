#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "tests/device/buffer.h"
#include "tests/device/memory.h"

namespace primerl::cuda_test {
namespace {

/// On a machine without a device, device tests fail here, by name.
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

/// A separate stream; the destructor waits for it.
class OwnStream {
 public:
  OwnStream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "running the op"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

void* take_memory(size_t size) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, size), "taking memory of the CUDA device");
  return memory;
}
void free_memory(void* memory) { cudaFree(memory); }

void write_memory(void* memory, std::span<const std::byte> bytes) {
  check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
        "writing to the CUDA device");
  // A copy from pageable memory may return before it has reached the device.
  check(cudaDeviceSynchronize(), "waiting for the CUDA device");
}

std::vector<std::byte> read_memory(const void* memory, size_t size) {
  std::vector<std::byte> bytes(size);
  check(cudaMemcpy(bytes.data(), memory, size, cudaMemcpyDeviceToHost),
        "reading from the CUDA device");
  return bytes;
}

uint64_t num_seeds(uint64_t all) { return all; }

void run(const std::function<void(cuda::Stream)>& launch) {
  const OwnStream stream;
  launch(stream.get());
  stream.wait();
}

void with_graph(const std::function<void(cuda::Stream)>& launch,
                const std::function<void(const std::function<void()>& replay)>& body) {
  const OwnStream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing");
  launch(stream.get());
  check(cudaStreamEndCapture(stream.get(), &graph), "capturing the op");
  check(cudaGraphInstantiate(&ready, graph, 0), "making the graph");
  body([&] {
    check(cudaGraphLaunch(ready, stream.get()), "launching the graph");
    stream.wait();
  });
  check(cudaGraphExecDestroy(ready), "ending the graph");
  check(cudaGraphDestroy(graph), "ending the graph");
}

double milliseconds_of(const std::function<cuda::Outcome(cuda::Stream)>& launch, int count) {
  const auto launch_checked = [&](cudaStream_t stream) {
    const cuda::Outcome outcome = launch(stream);
    if (!outcome.is_ok()) throw std::runtime_error(fmt::format("the op: {}", outcome.fault));
  };
  const OwnStream stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "making an event");
  check(cudaEventCreate(&end), "making an event");
  for (int i = 0; i < 3; ++i) launch_checked(stream.get());
  check(cudaEventRecord(begin, stream.get()), "recording an event");
  for (int i = 0; i < count; ++i) launch_checked(stream.get());
  check(cudaEventRecord(end, stream.get()), "recording an event");
  stream.wait();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "reading an event");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds / count;
}

}  // namespace primerl::cuda_test
