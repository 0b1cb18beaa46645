/// Places: the pieces of a device's memory that a publisher of a weight channel offers, and that
/// its receivers keep open from version to version, since to open and to close one takes longer
/// than to copy it.
///
/// A place is a number with two locks in the channel's directory: the publisher holds one while it
/// offers the place, each receiver shares the other while it has the piece open. So the kernel
/// knows both, also of an end that was killed. A number is offered anew only when nobody has it
/// open, and no slot that can be read names it: what a receiver reads and has open under a number
/// is what that number means.
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
#include <set>
#include <utility>
#include <vector>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/shm_directory.h"

namespace primerl {

/// Of a publisher. Keeps the memory of what it offers, not the loan of a pool.
class OfferedPlaces {
 public:
  struct Named {
    std::shared_ptr<const ShmPlace> place;  // while it lives the number is of no other memory
    DeviceHandle handle;
  };

  /// `directory` is claimed by this end, and outlives it.
  explicit OfferedPlaces(ShmDirectory& directory) : directory_(directory) {}

  /// The place of the memory behind `buffer`; none: kShmPlacesMax others are offered or still open.
  /// The error is DeviceBuffer::handle()'s, which is asked once for each.
  Result<std::optional<Named>> offer(const DeviceBuffer& buffer);
  /// To be called now and then while it is not empty: memory that nobody else in this process keeps
  /// is withdrawn, and freed when no receiver has it open any more. A receiver may hold a place and
  /// find it withdrawn, but not one of other memory.
  void attend();
  bool empty() const { return offered_.empty(); }

 private:
  struct Offered {
    std::shared_ptr<const DeviceBuffer> memory;  // null: freed, and the number still named
    Named named;
    bool is_withdrawn = false;
  };

  ShmDirectory& directory_;
  std::map<ShmPlace, Offered> offered_;
};

/// A place that is to be opened.
struct WantedPlace {
  ShmPlace place = 0;
  KeyedVersion version;  // whose weights lie there
  DeviceHandle handle;
  std::shared_ptr<const void> slot;  // which names the place, and is held
  std::unique_ptr<ShmSegment> lock;  // ShmDirectory::hold()
  /// What came of it.
  Result<std::shared_ptr<const DeviceBuffer>> opened = std::shared_ptr<const DeviceBuffer>();
};

/// Of a receiver. To open a piece and to close it are for its caller, which is not to have others
/// wait meanwhile.
class OpenPlaces {
 public:
  /// Null: it is not open. The caller holds a slot that names the place.
  std::shared_ptr<const DeviceBuffer> find(ShmPlace place) const;
  bool is_wanted(ShmPlace place) const { return wanted_.contains(place); }
  void want(WantedPlace wanted);
  bool has_wanted() const { return !waiting_.empty(); }
  /// Those that are wanted since the last call, to be opened and given to keep().
  std::vector<WantedPlace> take_wanted() { return std::exchange(waiting_, {}); }
  /// Keeps what was opened; it is no longer wanted, whatever came of it.
  void keep(WantedPlace wanted);
  /// Those that are no longer offered and that nobody uses, to be closed.
  std::vector<std::shared_ptr<const void>> take_withdrawn();
  bool empty() const { return open_.empty() && wanted_.empty(); }

 private:
  struct Open {
    std::unique_ptr<ShmSegment> lock;  // goes after the buffer
    std::shared_ptr<const DeviceBuffer> buffer;
  };

  std::map<ShmPlace, std::shared_ptr<const Open>> open_;
  std::set<ShmPlace> wanted_;
  std::vector<WantedPlace> waiting_;  // of those, the ones that nobody opens yet
};

}  // namespace primerl
