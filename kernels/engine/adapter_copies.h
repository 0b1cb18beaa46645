/// AdapterCopies: an engine's own copies of the adapters that it knows, for adapters without a
/// slot.
///
/// Copies are in host memory up to a bound. Beyond it, the least recently used copy moves to a
/// file. The files have no names, so a killed process leaves none. A copy in a file is read from
/// there when it is loaded into a slot, and moves back to memory with its next version. Bounds: the
/// bytes in host memory, and one copy for each number. Used by one thread; other threads may read
/// tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "kernels/weights/snapshot.h"

namespace primerl {

class AdapterCopies {
 public:
  /// `host_bytes_max`: bytes of all copies in host memory; 0: no bound. `folder`: where files are;
  /// "": the system's folder of temporary files.
  AdapterCopies(int64_t host_bytes_max, std::filesystem::path folder);

  /// Copies `tensors` as those of adapter `number`, in place of its earlier ones. Other copies may
  /// move to files. If a file cannot be written, an error, and the earlier copy stays.
  Status put(int32_t number, const std::vector<WeightTensor>& tensors);
  /// The tensors of `number`, which has a copy; this is a use. They stay valid if the copy moves or
  /// is replaced.
  std::vector<WeightTensor> use(int32_t number);
  /// A prompt waits for adapter `number`: the system begins to read its copy, if it is in a file.
  void expect_use(int32_t number) const;
  /// Forgets the copy of `number`, if there is one.
  void remove(int32_t number);

  bool contains(int32_t number) const { return copies_.contains(number); }
  size_t count() const { return copies_.size(); }
  int64_t host_bytes() const { return host_bytes_; }
  int64_t file_bytes() const { return file_bytes_; }
  uint64_t num_moves() const { return num_moves_; }  // copies that were written to files

 private:
  struct Copy {
    std::vector<WeightTensor> tensors;
    int64_t num_bytes = 0;
    uint64_t last_use = 0;
    std::span<const std::byte> file;  // empty: in host memory

    bool is_in_file() const { return !file.empty(); }
  };

  Status write(Copy& copy);
  Status free_host_bytes(int64_t wanted, int32_t except);

  const int64_t host_bytes_max_;
  const std::filesystem::path folder_;
  std::map<int32_t, Copy> copies_;  // by adapter
  int64_t host_bytes_ = 0, file_bytes_ = 0;
  uint64_t num_uses_ = 0, num_moves_ = 0;
};

}  // namespace primerl
