#include "kernels/cuda/memory/device_memory.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/common/boundary.h"
#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/memory/mapped_memory.h"
#include "kernels/weights/descriptor_server.h"

namespace primerl {
namespace {

/// The content of a DeviceHandle of a CUDA device.
struct CudaMemoryHandle {
  std::array<char, 16> uuid{};  // of the CUDA device that has the memory
  uint64_t mapped_bytes = 0;
  DescriptorName name;
};
static_assert(sizeof(CudaMemoryHandle) <= sizeof(DeviceHandle::bytes));
static_assert(std::is_trivially_copyable_v<CudaMemoryHandle>);

Status available(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return ok();
  static_cast<void>(cudaGetLastError());  // clears it for the next call
  return error(Code::kUnavailable, "{}: {}", what, cudaGetErrorString(code));
}

Result<std::array<char, 16>> uuid_of(int device_index) {
  cudaDeviceProp facts{};
  RETURN_IF_ERROR(available(cudaGetDeviceProperties(&facts, device_index), "a device's number"));
  std::array<char, 16> uuid{};
  std::memcpy(uuid.data(), facts.uuid.bytes, uuid.size());
  return uuid;
}

/// Makes a CUDA device current for the calling thread while it exists. Unlike libtorch's guard it
/// does not throw if a device is lost; the next call fails and reports it.
class OnDevice {
 public:
  explicit OnDevice(int32_t device_index) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device_index;
    set(device_index);
  }
  ~OnDevice() { set(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  static void set(int device_index) {
    if (cudaSetDevice(device_index) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  int before_ = 0;
};

/// N of the CUDA device in this process; -1: this process does not see it.
int device_with(const std::array<char, 16>& uuid) {
  int count = 0;
  if (!available(cudaGetDeviceCount(&count), "the number of devices").ok()) return -1;
  for (int device_index = 0; device_index < count; ++device_index)
    if (const auto known = uuid_of(device_index); known.ok() && *known == uuid) return device_index;
  return -1;
}

/// Whether operations of `device_index` reach memory of `owner`; -1 is a device that this process
/// does not see.
Status check_reach(int device_index, int owner) {
  if (owner < 0) return error(Code::kUnavailable, "this process does not see the device");
  if (owner == device_index) return ok();
  int can_reach = 0;
  RETURN_IF_ERROR(
      available(cudaDeviceCanAccessPeer(&can_reach, device_index, owner), "peer access"));
  if (can_reach != 0) return ok();
  return error(Code::kUnavailable, "cuda:{} has no peer access to cuda:{}", device_index, owner);
}

class CudaBuffer final : public DeviceBuffer {
 public:
  /// `reader` is the CUDA device that maps it; for own memory, the same device. `server` offers it
  /// to other processes; null if another process owns it.
  CudaBuffer(int32_t device_index, int32_t reader, std::unique_ptr<MappedMemory> memory,
             uint64_t num_bytes, std::shared_ptr<DescriptorServer> server)
      : device_index_(device_index),
        reader_(reader),
        memory_(std::move(memory)),
        num_bytes_(num_bytes),
        server_(std::move(server)) {}
  /// All users have waited for their launches.
  ~CudaBuffer() override {
    if (name_.has_value()) server_->withdraw(*name_);
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  int32_t device_index() const override { return device_index_; }
  void* data() const override { return memory_->data(); }
  uint64_t num_bytes() const override { return num_bytes_; }

  Status read(uint64_t offset, std::span<std::byte> to) const override {
    return at_boundary("weights to the host", [&]() -> Status {
      const CudaStream stream(reader_, CudaStream::Urgency::kLow);
      const CudaStream::Use use(stream);
      RETURN_IF_ERROR(
          stream.copy(to.data(), static_cast<const std::byte*>(data()) + offset, to.size()));
      return stream.wait();
    });
  }

  Result<DeviceHandle> handle() const override {
    if (server_ == nullptr)
      return error(Code::kUnavailable,
                   "memory of another process cannot be shared from this process");
    CudaMemoryHandle named;
    ASSIGN_OR_RETURN(named.uuid, uuid_of(device_index_));
    named.mapped_bytes = memory_->num_bytes();
    ASSIGN_OR_RETURN(named.name, name());
    DeviceHandle handle;
    handle.num_bytes = num_bytes_;
    std::memcpy(handle.bytes.data(), &named, sizeof named);
    return handle;
  }

  Status reach_from(int32_t device_index) const override {
    RETURN_IF_ERROR(check_reach(device_index, device_index_));
    const OnDevice on(device_index);
    return memory_->let_use(device_index);
  }

 private:
  Result<DescriptorName> name() const {
    const std::lock_guard lock(mutex_);
    if (name_.has_value()) return *name_;
    RETURN_IF_ERROR(memory_->share());  // error if the system does not support sharing
    ASSIGN_OR_RETURN(name_, server_->offer([this] { return memory_->share(); }));
    return *name_;
  }

  const int32_t device_index_;
  const int32_t reader_;
  const std::unique_ptr<MappedMemory> memory_;
  const uint64_t num_bytes_;
  const std::shared_ptr<DescriptorServer> server_;
  mutable std::mutex mutex_;
  mutable std::optional<DescriptorName> name_;
};

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(int32_t device_index) : device_index_(device_index) {}

  /// Not from libtorch's pool: a handle shares the whole allocation.
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) override {
    const OnDevice on(device_index_);
    ASSIGN_OR_RETURN(auto memory, MappedMemory::make(device_index_, num_bytes));
    return std::shared_ptr<DeviceBuffer>(std::make_shared<CudaBuffer>(
        device_index_, device_index_, std::move(memory), num_bytes, server_));
  }

  Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) override {
    CudaMemoryHandle named;
    std::memcpy(&named, handle.bytes.data(), sizeof named);
    const OnDevice on(device_index_);
    const int owner = device_with(named.uuid);
    RETURN_IF_ERROR(check_reach(device_index_, owner));
    ASSIGN_OR_RETURN(const Descriptor sent, receive_descriptor(named.name));
    ASSIGN_OR_RETURN(auto memory, MappedMemory::take(sent, device_index_, named.mapped_bytes));
    return std::shared_ptr<DeviceBuffer>(std::make_shared<CudaBuffer>(
        owner, device_index_, std::move(memory), handle.num_bytes, nullptr));
  }

 private:
  const int32_t device_index_;
  const std::shared_ptr<DescriptorServer> server_ = std::make_shared<DescriptorServer>();
};

}  // namespace

std::shared_ptr<DeviceMemory> make_cuda_memory(int32_t device_index) {
  return std::make_shared<CudaMemory>(device_index);
}

}  // namespace primerl
