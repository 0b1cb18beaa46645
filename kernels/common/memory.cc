#include "kernels/common/memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "graph/base/machine_memory.h"

namespace primerl {
namespace {

constexpr double kGigabyte = 1e9;
constexpr size_t kBytesOfOwnPages = size_t{4} << 20;  // smaller buffers are not worth a mapping

}  // namespace

Status check_memory(std::string_view what, double bytes) {
  const MemoryLimit limit = memory_limit();
  if (limit.bytes == 0 || bytes <= limit.bytes) return ok();
  return error(Code::kExhausted, "{} needs {:.1f} GB of memory, the limit is {:.1f} GB ({})", what,
               bytes / kGigabyte, limit.bytes / kGigabyte, limit.source)
      .note("`primerl-graph model DIR` says what a model needs");
}

at::Tensor zero_floats(int64_t count) {
  const size_t size = static_cast<size_t>(count) * sizeof(float);
  if (size < kBytesOfOwnPages) return at::zeros({count}, at::kFloat);
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  // Fails if the system has no huge pages: then small pages are used.
  ::madvise(address, size, MADV_HUGEPAGE);
  return at::from_blob(
      address, {count}, [size](void* mapped) { ::munmap(mapped, size); }, at::kFloat);
}

struct BufferPool::Free {
  std::mutex mutex;
  std::vector<at::Tensor> buffers;  // guarded by mutex
};

std::shared_ptr<float> BufferPool::take() {
  if (free_ == nullptr) free_ = std::make_shared<Free>();
  at::Tensor buffer;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->buffers.empty()) {
      buffer = std::move(free_->buffers.back());
      free_->buffers.pop_back();
    }
  }
  if (!buffer.defined()) buffer = zero_floats(count_);
  float* const numbers = buffer.mutable_data_ptr<float>();
  return {numbers, [buffer, pool = std::weak_ptr(free_)](float*) {
            const auto free = pool.lock();
            if (free == nullptr) return;
            const std::lock_guard lock(free->mutex);
            if (free->buffers.size() < kFreeMax) free->buffers.push_back(buffer);
          }};
}

}  // namespace primerl
