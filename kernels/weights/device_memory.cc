#include "kernels/weights/device_memory.h"

#include <utility>

namespace primerl {

DeviceBufferPool::DeviceBufferPool(std::shared_ptr<DeviceMemory> memory, uint64_t num_bytes,
                                   size_t buffers_max)
    : memory_(std::move(memory)),
      num_bytes_(num_bytes),
      buffers_max_(buffers_max),
      shared_(std::make_shared<Shared>()) {}

DeviceBufferPool::~DeviceBufferPool() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_closed = true;
  shared_->free.clear();
}

std::shared_ptr<DeviceBuffer> DeviceBufferPool::take() {
  const std::lock_guard lock(shared_->mutex);
  std::shared_ptr<DeviceBuffer> buffer;
  if (!shared_->free.empty()) {
    buffer = std::move(shared_->free.back());
    shared_->free.pop_back();
  } else if (shared_->num_held < buffers_max_) {
    auto made = memory_->allocate(num_bytes_);
    if (!made.ok()) return nullptr;
    buffer = std::move(made).value();
  } else {
    return nullptr;
  }
  ++shared_->num_held;
  return lent(std::move(buffer));
}

bool DeviceBufferPool::make() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->num_held + shared_->free.size() >= buffers_max_) return false;
  auto made = memory_->allocate(num_bytes_);
  if (made.ok()) shared_->free.push_back(std::move(made).value());
  return made.ok();
}

std::vector<std::weak_ptr<const DeviceBuffer>> DeviceBufferPool::free() const {
  const std::lock_guard lock(shared_->mutex);
  return {shared_->free.begin(), shared_->free.end()};
}

std::shared_ptr<DeviceBuffer> DeviceBufferPool::lent(std::shared_ptr<DeviceBuffer> buffer) const {
  DeviceBuffer* const raw = buffer.get();
  return {raw, [shared = shared_, buffer = std::move(buffer)](DeviceBuffer*) mutable {
            const std::lock_guard lock(shared->mutex);
            --shared->num_held;
            if (!shared->is_closed) shared->free.push_back(std::move(buffer));
          }};
}

void DeviceBufferPool::release_free() {
  const std::lock_guard lock(shared_->mutex);
  shared_->free.clear();
}

size_t DeviceBufferPool::num_held() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->num_held;
}

size_t DeviceBufferPool::num_made() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->num_held + shared_->free.size();
}

}  // namespace primerl
