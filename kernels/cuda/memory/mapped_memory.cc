#include "kernels/cuda/memory/mapped_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>
#include <utility>

namespace primerl {
namespace {

constexpr unsigned kDriverVersion = 12000;  // the driver version whose interface is requested;
                                            // later drivers support it
constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Driver functions are looked up through the runtime, which has loaded it: programs link without
/// the driver.
struct Driver {
  decltype(cuMemGetAllocationGranularity)* granularity = nullptr;
  decltype(cuDeviceGetAttribute)* attribute = nullptr;
  decltype(cuMemCreate)* create = nullptr;
  decltype(cuMemRelease)* release = nullptr;
  decltype(cuMemAddressReserve)* reserve = nullptr;
  decltype(cuMemAddressFree)* free = nullptr;
  decltype(cuMemMap)* map = nullptr;
  decltype(cuMemUnmap)* unmap = nullptr;
  decltype(cuMemSetAccess)* set_access = nullptr;
  decltype(cuMemExportToShareableHandle)* give = nullptr;
  decltype(cuMemImportFromShareableHandle)* take = nullptr;
  decltype(cuGetErrorString)* text = nullptr;
};

template <class Function>
Status find(const char* name, Function*& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t asked =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result);
  if (asked != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (asked != cudaSuccess || result != cudaDriverEntryPointSuccess)
    return error(Code::kUnavailable, "the driver has no {}", name);
  function = reinterpret_cast<Function*>(found);
  return ok();
}

Result<Driver> find_all() {
  Driver driver;
  RETURN_IF_ERROR(find("cuMemGetAllocationGranularity", driver.granularity));
  RETURN_IF_ERROR(find("cuDeviceGetAttribute", driver.attribute));
  RETURN_IF_ERROR(find("cuMemCreate", driver.create));
  RETURN_IF_ERROR(find("cuMemRelease", driver.release));
  RETURN_IF_ERROR(find("cuMemAddressReserve", driver.reserve));
  RETURN_IF_ERROR(find("cuMemAddressFree", driver.free));
  RETURN_IF_ERROR(find("cuMemMap", driver.map));
  RETURN_IF_ERROR(find("cuMemUnmap", driver.unmap));
  RETURN_IF_ERROR(find("cuMemSetAccess", driver.set_access));
  RETURN_IF_ERROR(find("cuMemExportToShareableHandle", driver.give));
  RETURN_IF_ERROR(find("cuMemImportFromShareableHandle", driver.take));
  RETURN_IF_ERROR(find("cuGetErrorString", driver.text));
  return driver;
}

const Result<Driver>& driver() {
  static const Result<Driver> found = find_all();
  return found;
}

/// The driver's function `what`, which must exist.
Status available(CUresult code, std::string_view what) {
  if (code == CUDA_SUCCESS) return ok();
  const char* text = nullptr;
  if ((*driver()->text)(code, &text) != CUDA_SUCCESS || text == nullptr) text = "no text";
  return error(code == CUDA_ERROR_OUT_OF_MEMORY ? Code::kExhausted : Code::kUnavailable,
               "{}: {} (error {} of the driver)", what, text, static_cast<int>(code));
}

/// If memory of a device cannot be shared with other processes, it is still mapped for this one.
Result<CUmemAllocationProp> kind_of_memory(int32_t device_index) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_index};
  int can_share = 0;
  RETURN_IF_ERROR(
      available(driver()->attribute(&can_share,
                                    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                    device_index),
                "a device's attribute"));
  kind.requestedHandleTypes = can_share != 0 ? kHandleType : CU_MEM_HANDLE_TYPE_NONE;
  return kind;
}

}  // namespace

Result<std::unique_ptr<MappedMemory>> MappedMemory::make(int32_t device_index, uint64_t num_bytes) {
  if (!driver().ok()) return driver().error();
  ASSIGN_OR_RETURN(const CUmemAllocationProp kind, kind_of_memory(device_index));
  size_t unit = 0;
  RETURN_IF_ERROR(available(
      driver()->granularity(&unit, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "memory"));
  const uint64_t rounded = (num_bytes + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle allocation = 0;
  RETURN_IF_ERROR(available(driver()->create(&allocation, rounded, &kind, 0),
                            fmt::format("{} bytes of cuda:{}", rounded, device_index)));
  std::unique_ptr<MappedMemory> made(new MappedMemory(allocation, rounded));
  RETURN_IF_ERROR(made->map());
  RETURN_IF_ERROR(made->let_use(device_index));
  return made;
}

Result<std::unique_ptr<MappedMemory>> MappedMemory::take(const Descriptor& sent, int32_t reader,
                                                         uint64_t num_bytes) {
  if (!driver().ok()) return driver().error();
  CUmemGenericAllocationHandle allocation = 0;
  auto* const number = reinterpret_cast<void*>(static_cast<intptr_t>(sent.get()));
  RETURN_IF_ERROR(
      available(driver()->take(&allocation, number, kHandleType), "memory of another process"));
  std::unique_ptr<MappedMemory> made(new MappedMemory(allocation, num_bytes));
  RETURN_IF_ERROR(made->map());
  RETURN_IF_ERROR(made->let_use(reader));
  return made;
}

Status MappedMemory::map() {
  CUdeviceptr address = 0;
  RETURN_IF_ERROR(available(driver()->reserve(&address, num_bytes_, 0, 0, 0), "addresses"));
  address_ = address;
  RETURN_IF_ERROR(available(driver()->map(address_, num_bytes_, 0, allocation_, 0), "a mapping"));
  is_mapped_ = true;
  return ok();
}

/// Errors here are ignored: a lost device reports an error in the next call.
MappedMemory::~MappedMemory() {
  if (is_mapped_) static_cast<void>(driver()->unmap(address_, num_bytes_));
  if (address_ != 0) static_cast<void>(driver()->free(address_, num_bytes_));
  static_cast<void>(driver()->release(allocation_));
}

void* MappedMemory::data() const { return reinterpret_cast<void*>(address_); }

Status MappedMemory::let_use(int32_t device_index) {
  const std::lock_guard lock(mutex_);
  if (users_.contains(device_index)) return ok();
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_index};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  RETURN_IF_ERROR(available(driver()->set_access(address_, num_bytes_, &access, 1),
                            fmt::format("access of cuda:{}", device_index)));
  users_.insert(device_index);
  return ok();
}

Result<Descriptor> MappedMemory::share() const {
  int number = -1;
  RETURN_IF_ERROR(available(driver()->give(&number, allocation_, kHandleType, 0),
                            "the system does not share a device's memory"));
  return Descriptor(number);
}

}  // namespace primerl
