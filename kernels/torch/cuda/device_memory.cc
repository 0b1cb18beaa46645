#include "kernels/torch/cuda/device_memory.h"

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/torch/boundary.h"
#include "kernels/torch/cuda/stream.h"

namespace primerl {
namespace {

/// What a DeviceHandle of a card says.
struct CardHandle {
  std::array<char, 16> uuid{};  // of the card that has the memory
  cudaIpcMemHandle_t ipc{};
};
static_assert(sizeof(CardHandle) <= sizeof(DeviceHandle::bytes));

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
/// where a device is lost, since a destructor uses it; the call that follows fails, and says so.
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

class CardBuffer final : public DeviceBuffer {
 public:
  enum class Owner { kHere, kAnotherProcess };

  /// `reader` is the card that has it mapped: of its own memory the same.
  CardBuffer(Owner owner, int32_t card, int32_t reader, void* data, uint64_t num_bytes)
      : owner_(owner), card_(card), reader_(reader), data_(data), num_bytes_(num_bytes) {}
  /// Its holders have waited for what they launched.
  ~CardBuffer() override {
    const OnCard on(reader_);
    const cudaError_t freed =
        owner_ == Owner::kHere ? cudaFree(data_) : cudaIpcCloseMemHandle(data_);
    static_cast<void>(available(freed, "freeing memory"));
  }
  CardBuffer(const CardBuffer&) = delete;
  CardBuffer& operator=(const CardBuffer&) = delete;

  int32_t card() const override { return card_; }
  void* data() const override { return data_; }
  uint64_t num_bytes() const override { return num_bytes_; }

  Status read(uint64_t offset, std::span<std::byte> to) const override {
    return at_boundary("weights to the host", [&]() -> Status {
      const CardStream stream(reader_, CardStream::Urgency::kLow);
      const CardStream::Use use(stream);
      RETURN_IF_ERROR(
          stream.copy(to.data(), static_cast<const std::byte*>(data_) + offset, to.size()));
      return stream.wait();
    });
  }

  Result<DeviceHandle> handle() const override {
    if (owner_ != Owner::kHere)
      return error(Code::kUnavailable, "memory of another process is not this one's to give away");
    CardHandle named;
    ASSIGN_OR_RETURN(named.uuid, uuid_of(card_));
    const OnCard on(card_);
    RETURN_IF_ERROR(available(cudaIpcGetMemHandle(&named.ipc, data_), "CUDA IPC gives no handle"));
    DeviceHandle handle;
    handle.num_bytes = num_bytes_;
    std::memcpy(handle.bytes.data(), &named, sizeof named);
    return handle;
  }

  Status reach_from(int32_t card) const override {
    if (card == reader_) return ok();
    int can_reach = 0;
    RETURN_IF_ERROR(available(cudaDeviceCanAccessPeer(&can_reach, card, reader_), "peer access"));
    if (can_reach == 0)
      return error(Code::kUnavailable, "cuda:{} has no peer access to cuda:{}", card, reader_);
    const OnCard on(card);
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(reader_, 0);
    if (enabled != cudaErrorPeerAccessAlreadyEnabled) return available(enabled, "peer access");
    static_cast<void>(cudaGetLastError());
    return ok();
  }

 private:
  const Owner owner_;
  const int32_t card_;
  const int32_t reader_;
  void* const data_;
  const uint64_t num_bytes_;
};

class CardMemory final : public DeviceMemory {
 public:
  explicit CardMemory(int32_t card) : card_(card) {}

  /// Not of libtorch's pool: a handle gives away the whole allocation.
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) override {
    const OnCard on(card_);
    void* data = nullptr;
    const cudaError_t made = cudaMalloc(&data, num_bytes);
    if (made != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return error(Code::kExhausted, "{} bytes of cuda:{}: {}", num_bytes, card_,
                   cudaGetErrorString(made));
    }
    return std::shared_ptr<DeviceBuffer>(
        std::make_shared<CardBuffer>(CardBuffer::Owner::kHere, card_, card_, data, num_bytes));
  }

  Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) override {
    CardHandle named;
    std::memcpy(&named, handle.bytes.data(), sizeof named);
    const OnCard on(card_);
    const int owner = card_with(named.uuid);
    if (owner >= 0 && owner != card_) {
      int can_reach = 0;
      RETURN_IF_ERROR(available(cudaDeviceCanAccessPeer(&can_reach, card_, owner), "peer access"));
      if (can_reach == 0)
        return error(Code::kUnavailable, "cuda:{} has no peer access to cuda:{}", card_, owner);
    }
    void* data = nullptr;
    RETURN_IF_ERROR(available(
        cudaIpcOpenMemHandle(&data, named.ipc, cudaIpcMemLazyEnablePeerAccess), "CUDA IPC"));
    return std::shared_ptr<DeviceBuffer>(std::make_shared<CardBuffer>(
        CardBuffer::Owner::kAnotherProcess, owner, card_, data, handle.num_bytes));
  }

 private:
  const int32_t card_;
};

}  // namespace

std::shared_ptr<DeviceMemory> make_card_memory(int32_t card) {
  return std::make_shared<CardMemory>(card);
}

}  // namespace primerl
