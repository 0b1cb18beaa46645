#include "kernels/torch/memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
namespace primerl {
namespace {

constexpr double kGigabyte = 1e9;
constexpr size_t kBytesOfOwnPages = size_t{4} << 20;  // less is not worth a mapping

/// 0 where the system does not say.
double machine_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<double>(pages) * static_cast<double>(size) : 0;
}

}  // namespace

Status check_memory(std::string_view what, double bytes) {
  const double there = machine_bytes();
  if (there == 0 || bytes <= there) return ok();
  return error(Code::kExhausted, "{} needs {:.1f} GB, this machine has {:.1f} GB of memory", what,
               bytes / kGigabyte, there / kGigabyte)
      .note("`primerl-graph model DIR` says what a model needs");
}

at::Tensor zero_floats(int64_t count) {
  const size_t size = static_cast<size_t>(count) * sizeof(float);
  if (size < kBytesOfOwnPages) return at::zeros({count}, at::kFloat);
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  // Refused where the system has none: then small pages do.
  ::madvise(address, size, MADV_HUGEPAGE);
  return at::from_blob(
      address, {count}, [size](void* mapped) { ::munmap(mapped, size); }, at::kFloat);
}

}  // namespace primerl
