#include "kernels/engine/adapter_copies.h"

#include <algorithm>
#include <array>
#include <utility>

#include "graph/base/files.h"

namespace primerl {
namespace {

constexpr size_t kTensorAlignment = 64;  // of a tensor in a file

int64_t bytes_of_tensors(const std::vector<WeightTensor>& tensors) {
  int64_t count = 0;
  for (const WeightTensor& tensor : tensors) count += static_cast<int64_t>(tensor.bytes.size());
  return count;
}

Blob copy_of(const Blob& blob) {
  const auto bytes = blob.bytes();
  return Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

size_t padding_of(size_t num_bytes) {
  return (kTensorAlignment - num_bytes % kTensorAlignment) % kTensorAlignment;
}

}  // namespace

AdapterCopies::AdapterCopies(int64_t host_bytes_max, std::filesystem::path folder)
    : host_bytes_max_(host_bytes_max), folder_(std::move(folder)) {}

Status AdapterCopies::put(int32_t number, const std::vector<WeightTensor>& tensors) {
  Copy copy{tensors, bytes_of_tensors(tensors), ++num_uses_, {}};
  const bool fits = host_bytes_max_ == 0 || copy.num_bytes <= host_bytes_max_;
  if (fits) {
    RETURN_IF_ERROR(free_host_bytes(copy.num_bytes, number));
    // Copied, not kept: a channel has space for few versions.
    for (WeightTensor& tensor : copy.tensors) tensor.bytes = copy_of(tensor.bytes);
  } else {
    RETURN_IF_ERROR(write(copy));
  }
  remove(number);
  (fits ? host_bytes_ : file_bytes_) += copy.num_bytes;
  copies_[number] = std::move(copy);
  return ok();
}

/// Moves copies to files until `wanted` more bytes fit beside all but that of `except`, which is
/// about to be replaced.
Status AdapterCopies::free_host_bytes(int64_t wanted, int32_t except) {
  const auto replaced = copies_.find(except);
  const bool is_in_memory = replaced != copies_.end() && !replaced->second.is_in_file();
  const int64_t kept = is_in_memory ? replaced->second.num_bytes : 0;
  while (host_bytes_max_ > 0 && host_bytes_ - kept + wanted > host_bytes_max_) {
    Copy* oldest = nullptr;
    for (auto& [number, copy] : copies_)
      if (number != except && !copy.is_in_file() &&
          (oldest == nullptr || copy.last_use < oldest->last_use))
        oldest = &copy;
    CHECK(oldest != nullptr, "one copy alone is above the bound");
    RETURN_IF_ERROR(write(*oldest));
    host_bytes_ -= oldest->num_bytes;
    file_bytes_ += oldest->num_bytes;
  }
  return ok();
}

/// The bytes go to the page cache, and from there to the disk when the system needs the memory.
Status AdapterCopies::write(Copy& copy) {
  static constexpr std::array<std::byte, kTensorAlignment> kPadding{};
  std::vector<std::span<const std::byte>> parts;
  for (const WeightTensor& tensor : copy.tensors) {
    parts.push_back(tensor.bytes.bytes());
    parts.push_back(std::span(kPadding).first(padding_of(tensor.bytes.size())));
  }
  auto file =
      write_unnamed_file(folder_.empty() ? std::filesystem::temp_directory_path() : folder_, parts);
  if (!file.ok())
    return Error(std::move(file).error())
        .while_doing("an adapter does not fit into 'adapter_host_bytes_max'");
  size_t offset = 0;
  for (WeightTensor& tensor : copy.tensors) {
    const size_t size = tensor.bytes.size();
    tensor.bytes = Blob(file->owner, file->bytes.subspan(offset, size));
    offset += size + padding_of(size);
  }
  copy.file = file->bytes;
  ++num_moves_;
  return ok();
}

std::vector<WeightTensor> AdapterCopies::use(int32_t number) {
  Copy& copy = copies_.at(number);
  copy.last_use = ++num_uses_;
  expect_use(number);
  return copy.tensors;
}

void AdapterCopies::expect_use(int32_t number) const {
  const auto found = copies_.find(number);
  if (found != copies_.end()) read_ahead(found->second.file);
}

void AdapterCopies::remove(int32_t number) {
  const auto found = copies_.find(number);
  if (found == copies_.end()) return;
  (found->second.is_in_file() ? file_bytes_ : host_bytes_) -= found->second.num_bytes;
  copies_.erase(found);
}

}  // namespace primerl
