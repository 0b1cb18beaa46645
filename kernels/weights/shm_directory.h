/// ShmDirectory: the shared table of one shared-memory weight channel: which versions are in which
/// segments.
///
/// The directory is one small segment, `primerl-w-<key>-0`; slot n is `primerl-w-<key>-<n>`. Every
/// live end has a shared presence lock, and the publisher an exclusive publisher lock, so the
/// kernel knows which ends are alive. There are two copies of the table: the publisher fills the
/// unused copy and then switches, in one store. A reader sees the old table or the new one, never a
/// mix. Not thread-safe within a process; between processes by atomics. A receiver that needs bytes
/// instead of device memory creates a segment `primerl-w-<key>-refused`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/channel.h"
#include "kernels/weights/shm_segment.h"

namespace primerl {

inline constexpr size_t kShmVersionsMax = 16;  // limit of ChannelSetup::versions_max
/// Segments of one channel: two versions for each of 255 keys, and one in progress.
inline constexpr size_t kShmSlotsMax = 512;

/// The number of a device buffer that the publisher offers (shm_places.h): below kShmPlacesMax.
using ShmPlace = uint8_t;
inline constexpr ShmPlace kShmPlacesMax = 64;

/// An existing slot: it has a readable version, or is free.
struct ShmSlotEntry {
  KeyedVersion version;      // none() if it is free
  uint64_t serial = 0;       // number in the segment's name
  uint64_t publication = 0;  // counts publishes of this channel; differs for two publishes of one
                             // version
  uint64_t num_bytes = 0;    // of the segment

  bool is_free() const { return version.version.is_none(); }
};

struct ShmTable {
  uint64_t turn = 0;                // counts writes; the table number
  std::vector<ShmSlotEntry> slots;  // oldest publication first

  const ShmSlotEntry* find(const KeyedVersion& version) const;
  /// The last published version of `key`; null if there is none.
  const ShmSlotEntry* newest(WeightsKey key) const;
};

class ShmDirectory {
 public:
  static constexpr const char* kPrefix = "primerl-w-";
  static std::string owner_name(std::string_view shm_owner);
  static std::string key_of(const ChannelSetup& setup);
  static std::string slot_name(const std::string& key, uint64_t serial);

  /// Opens it as the publisher. kExists if another one is alive, after 3 s in which it may end.
  static Result<std::unique_ptr<ShmDirectory>> claim(const ChannelSetup& setup);
  /// Opens it as a receiver. kNotFound if there was no publisher yet.
  static Result<std::unique_ptr<ShmDirectory>> join(const ChannelSetup& setup);
  /// Releases the locks; the last end removes every segment of the channel.
  ~ShmDirectory();

  const std::string& key() const { return key_; }
  /// kUnavailable if the publisher overtook many consecutive reads.
  Result<ShmTable> read() const;
  /// Called only by the publisher.
  void write(ShmTable table);
  /// For receivers: whether the publisher is alive.
  bool has_publisher() const;
  /// For the publisher: offers a place until withdraw(), or until it dies; false while a receiver
  /// has it open.
  bool offer(ShmPlace place);
  void withdraw(ShmPlace place);
  bool is_open(ShmPlace place);
  /// For a receiver, before it opens a place: marks it open while the result exists. kUnavailable:
  /// the publisher is using its lock, or the directory has been removed.
  Result<std::unique_ptr<ShmSegment>> hold(ShmPlace place) const;
  /// `held` is the result of hold().
  static bool is_offered(const ShmSegment& held, ShmPlace place);
  /// For a receiver that cannot open the memory of the publisher's device; holds while the channel
  /// exists.
  void refuse_devices(std::string_view why) const;
  /// The first such reason; empty: none.
  std::string devices_refused() const;
  /// For a new publisher: removes refusals that were meant for the old one.
  void forget_refusal() const;
  /// False if the channel's segments were removed while ends are alive.
  bool is_named() const { return segment_->is_named(); }

  /// Removes the channel `key` if it has no live end; otherwise does nothing.
  static bool remove_if_left(const std::string& key, ShmLeftover& removed);

 private:
  ShmDirectory(std::string key, std::unique_ptr<ShmSegment> segment)
      : key_(std::move(key)), segment_(std::move(segment)) {}

  const std::string key_;
  const std::unique_ptr<ShmSegment> segment_;
};

}  // namespace primerl
