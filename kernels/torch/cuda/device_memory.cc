#include "kernels/torch/cuda/device_memory.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/torch/boundary.h"
#include "kernels/torch/cuda/mapped_memory.h"
#include "kernels/torch/cuda/stream.h"
#include "kernels/weights/descriptor_server.h"

namespace primerl {
namespace {

/// What a DeviceHandle of a card says.
struct CardHandle {
  std::array<char, 16> uuid{};  // of the card that has the memory
  uint64_t mapped_bytes = 0;
  DescriptorName name;
};
static_assert(sizeof(CardHandle) <= sizeof(DeviceHandle::bytes));
static_assert(std::is_trivially_copyable_v<CardHandle>);

Status available(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return ok();
  static_cast<void>(cudaGetLastError());  // it must not be taken for that of the next call
  return error(Code::kUnavailable, "{}: {}", what, cudaGetErrorString(code));
}

Result<std::array<char, 16>> uuid_of(int card) {
  cudaDeviceProp facts{};
  RETURN_IF_ERROR(available(cudaGetDeviceProperties(&facts, card), "a device's number"));
  std::array<char, 16> uuid{};
  std::memcpy(uuid.data(), facts.uuid.bytes, uuid.size());
  return uuid;
}

/// Makes a card the calling thread's while it lives. Unlike libtorch's guard it throws nothing
/// where a device is lost; the call that follows fails, and says so.
class OnCard {
 public:
  explicit OnCard(int32_t card) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = card;
    set(card);
  }
  ~OnCard() { set(before_); }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

 private:
  static void set(int card) {
    if (cudaSetDevice(card) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  int before_ = 0;
};

/// N of the card in this process; -1: it does not see it.
int card_with(const std::array<char, 16>& uuid) {
  int count = 0;
  if (!available(cudaGetDeviceCount(&count), "the number of devices").ok()) return -1;
  for (int card = 0; card < count; ++card)
    if (const auto known = uuid_of(card); known.ok() && *known == uuid) return card;
  return -1;
}

/// Whether operations of `card` reach memory of `owner`, -1 being one that is not in this process.
Status check_reach(int card, int owner) {
  if (owner < 0) return error(Code::kUnavailable, "this process does not see the device");
  if (owner == card) return ok();
  int can_reach = 0;
  RETURN_IF_ERROR(available(cudaDeviceCanAccessPeer(&can_reach, card, owner), "peer access"));
  if (can_reach != 0) return ok();
  return error(Code::kUnavailable, "cuda:{} has no peer access to cuda:{}", card, owner);
}

class CardBuffer final : public DeviceBuffer {
 public:
  /// `reader` is the card that has it mapped: of its own memory the same. `server` offers it to
  /// others: null of another process's.
  CardBuffer(int32_t card, int32_t reader, std::unique_ptr<MappedMemory> memory,
             uint64_t num_bytes, std::shared_ptr<DescriptorServer> server)
      : card_(card),
        reader_(reader),
        memory_(std::move(memory)),
        num_bytes_(num_bytes),
        server_(std::move(server)) {}
  /// Its holders have waited for what they launched.
  ~CardBuffer() override {
    if (name_.has_value()) server_->withdraw(*name_);
  }
  CardBuffer(const CardBuffer&) = delete;
  CardBuffer& operator=(const CardBuffer&) = delete;

  int32_t card() const override { return card_; }
  void* data() const override { return memory_->data(); }
  uint64_t num_bytes() const override { return num_bytes_; }

  Status read(uint64_t offset, std::span<std::byte> to) const override {
    return at_boundary("weights to the host", [&]() -> Status {
      const CardStream stream(reader_, CardStream::Urgency::kLow);
      const CardStream::Use use(stream);
      RETURN_IF_ERROR(
          stream.copy(to.data(), static_cast<const std::byte*>(data()) + offset, to.size()));
      return stream.wait();
    });
  }

  Result<DeviceHandle> handle() const override {
    if (server_ == nullptr)
      return error(Code::kUnavailable, "memory of another process is not this one's to give away");
    CardHandle named;
    ASSIGN_OR_RETURN(named.uuid, uuid_of(card_));
    named.mapped_bytes = memory_->num_bytes();
    ASSIGN_OR_RETURN(named.name, name());
    DeviceHandle handle;
    handle.num_bytes = num_bytes_;
    std::memcpy(handle.bytes.data(), &named, sizeof named);
    return handle;
  }

  Status reach_from(int32_t card) const override {
    RETURN_IF_ERROR(check_reach(card, card_));
    const OnCard on(card);
    return memory_->let_use(card);
  }

 private:
  Result<DescriptorName> name() const {
    const std::lock_guard lock(mutex_);
    if (name_.has_value()) return *name_;
    RETURN_IF_ERROR(memory_->share());  // whether the system does at all
    ASSIGN_OR_RETURN(name_, server_->offer([this] { return memory_->share(); }));
    return *name_;
  }

  const int32_t card_;
  const int32_t reader_;
  const std::unique_ptr<MappedMemory> memory_;
  const uint64_t num_bytes_;
  const std::shared_ptr<DescriptorServer> server_;
  mutable std::mutex mutex_;
  mutable std::optional<DescriptorName> name_;
};

class CardMemory final : public DeviceMemory {
 public:
  explicit CardMemory(int32_t card) : card_(card) {}

  /// Not of libtorch's pool: a handle gives away the whole allocation.
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) override {
    const OnCard on(card_);
    ASSIGN_OR_RETURN(auto memory, MappedMemory::make(card_, num_bytes));
    return std::shared_ptr<DeviceBuffer>(
        std::make_shared<CardBuffer>(card_, card_, std::move(memory), num_bytes, server_));
  }

  Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) override {
    CardHandle named;
    std::memcpy(&named, handle.bytes.data(), sizeof named);
    const OnCard on(card_);
    const int owner = card_with(named.uuid);
    RETURN_IF_ERROR(check_reach(card_, owner));
    ASSIGN_OR_RETURN(const Descriptor sent, receive_descriptor(named.name));
    ASSIGN_OR_RETURN(auto memory, MappedMemory::take(sent, card_, named.mapped_bytes));
    return std::shared_ptr<DeviceBuffer>(std::make_shared<CardBuffer>(
        owner, card_, std::move(memory), handle.num_bytes, nullptr));
  }

 private:
  const int32_t card_;
  const std::shared_ptr<DescriptorServer> server_ = std::make_shared<DescriptorServer>();
};

}  // namespace

std::shared_ptr<DeviceMemory> make_card_memory(int32_t card) {
  return std::make_shared<CardMemory>(card);
}

}  // namespace primerl
