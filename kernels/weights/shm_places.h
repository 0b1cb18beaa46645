/// Places: numbers for the device buffers that a publisher of a weight channel offers. Receivers
/// keep the buffers open from version to version, since opening and closing one takes longer than
/// copying it.
///
/// A place is a number with two locks in the channel's directory. The publisher has one while it
/// offers the place; each receiver shares the other while it has the buffer open. So the kernel
/// knows both, also for an end that was killed. A number is reused only when no receiver has it
/// open and no readable slot names it. So the buffer that a receiver has open under a number is
/// always the one that a slot means.
///
///   publisher   offer ........ memory unused elsewhere: withdraw .... not open anywhere: free
///   receiver           open, use, use, use ................... closed, once it is not used
///
/// Neither class is thread-safe.
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

/// The publisher's part. Keeps the memory of the offered buffers, but not the loan of a pool.
class OfferedPlaces {
 public:
  struct Named {
    std::shared_ptr<const ShmPlace> place;  // while it exists, the number is not reused
    DeviceHandle handle;
  };

  /// `directory` was claimed by this end and must stay valid while this object exists.
  explicit OfferedPlaces(ShmDirectory& directory) : directory_(directory) {}

  /// The place of the memory of `buffer`; empty: kShmPlacesMax other buffers are offered or still
  /// open. Errors are those of DeviceBuffer::handle(), which is called once for each buffer.
  Result<std::optional<Named>> offer(const DeviceBuffer& buffer);
  /// Call it regularly while it is not empty. Memory that is not used elsewhere in this process is
  /// withdrawn, and freed when no receiver has it open. A receiver may find its place withdrawn,
  /// but never one of other memory.
  void attend();
  bool empty() const { return offered_.empty(); }

 private:
  struct Offered {
    std::shared_ptr<const DeviceBuffer> memory;  // null: freed, but a slot still names the number
    Named named;
    bool is_withdrawn = false;
  };

  ShmDirectory& directory_;
  std::map<ShmPlace, Offered> offered_;
};

/// A place that must be opened.
struct WantedPlace {
  ShmPlace place = 0;
  KeyedVersion version;  // the version in the buffer
  DeviceHandle handle;
  std::shared_ptr<const void> slot;  // keeps the slot that names the place
  std::unique_ptr<ShmSegment> lock;  // ShmDirectory::hold()
  /// The result of opening it.
  Result<std::shared_ptr<const DeviceBuffer>> opened = std::shared_ptr<const DeviceBuffer>();
};

/// The receiver's part. The caller opens and closes buffers, without blocking other threads.
class OpenPlaces {
 public:
  /// Null: not open. The caller retains a slot that names the place.
  std::shared_ptr<const DeviceBuffer> find(ShmPlace place) const;
  bool is_wanted(ShmPlace place) const { return wanted_.contains(place); }
  void want(WantedPlace wanted);
  bool has_wanted() const { return !waiting_.empty(); }
  /// The places wanted since the last call; open them and pass them to keep().
  std::vector<WantedPlace> remove_wanted() { return std::exchange(waiting_, {}); }
  /// Stores an opened buffer, or its error; the place is no longer wanted.
  void keep(WantedPlace wanted);
  /// Buffers that are no longer offered and not used; the caller must close them.
  std::vector<std::shared_ptr<const void>> remove_withdrawn();
  bool empty() const { return open_.empty() && wanted_.empty(); }

 private:
  struct Open {
    std::unique_ptr<ShmSegment> lock;  // released after the buffer
    std::shared_ptr<const DeviceBuffer> buffer;
  };

  std::map<ShmPlace, std::shared_ptr<const Open>> open_;
  std::set<ShmPlace> wanted_;
  std::vector<WantedPlace> waiting_;  // wanted places that are not being opened yet
};

}  // namespace primerl
