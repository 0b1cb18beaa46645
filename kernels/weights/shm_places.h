/// Places: the pieces of a device's memory that a publisher of a weight channel offers, and that
/// its receivers keep open from version to version, since to open and to close one takes longer
/// than to copy it.
///
/// A place is a number with two locks in the channel's directory: the publisher holds one while it
/// offers the place, each receiver shares the other while it has the piece open. So the kernel
/// knows both, also of an end that was killed. A number is offered anew only when nobody has it
/// open: what a receiver has open under a number is what that number means.
///
///   publisher   offer ........ nobody else keeps the memory: withdraw ... nobody has it open: free
///   receiver           open, use, use, use ................... closed, once it is not used
///
/// Neither is thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/shm_directory.h"

namespace primerl {

/// Of a publisher. Keeps the memory of what it offers, not the loan of a pool.
class OfferedPlaces {
 public:
  struct Named {
    ShmPlace place = 0;
    DeviceHandle handle;
  };

  /// `directory` is claimed by this end, and outlives it.
  explicit OfferedPlaces(ShmDirectory& directory) : directory_(directory) {}

  /// The place of the memory behind `buffer`; none: kShmPlacesMax others are offered or still open.
  /// The error is DeviceBuffer::handle()'s, which is asked once for each.
  Result<std::optional<Named>> offer(const DeviceBuffer& buffer);
  /// To be called now and then while it is not empty: memory that nobody else in this process keeps
  /// is withdrawn, and freed when no receiver has it open any more.
  void attend();
  bool empty() const { return offered_.empty(); }

 private:
  struct Offered {
    std::shared_ptr<const DeviceBuffer> memory;
    DeviceHandle handle;
    bool is_withdrawn = false;
  };

  ShmDirectory& directory_;
  std::map<ShmPlace, Offered> offered_;
};

/// Of a receiver.
class OpenPlaces {
 public:
  /// Null: it is not open. The caller holds a slot that names the place.
  std::shared_ptr<const DeviceBuffer> find(ShmPlace place) const;
  /// Keeps what was opened while `lock` (ShmDirectory::hold()) was held.
  std::shared_ptr<const DeviceBuffer> keep(ShmPlace place, std::unique_ptr<ShmSegment> lock,
                                           std::shared_ptr<const DeviceBuffer> buffer);
  /// Those that are no longer offered and that nobody uses, to be closed by the caller, which may
  /// take a while.
  std::vector<std::shared_ptr<const void>> take_withdrawn();
  bool empty() const { return open_.empty(); }

 private:
  struct Open {
    std::unique_ptr<ShmSegment> lock;  // goes after the buffer
    std::shared_ptr<const DeviceBuffer> buffer;
  };

  std::map<ShmPlace, std::shared_ptr<const Open>> open_;
};

}  // namespace primerl
