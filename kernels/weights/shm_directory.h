/// ShmDirectory: where the ends of one shared-memory weight channel meet, and which versions lie in
/// which segments.
///
/// One small segment, `primerl-w-<key>-0`; slot n is `primerl-w-<key>-<n>`. Every end that lives
/// holds the presence lock shared, the publisher the publisher lock exclusively, so the kernel
/// knows who is there. The table is kept twice: the publisher fills the copy nobody reads and then
/// turns, in one store. A reader sees the old table or the new one, never half. Not thread-safe
/// within a process; between processes by atomics. A receiver's one word to the publisher, that it
/// wants bytes instead of a device's memory, is a segment `primerl-w-<key>-refused`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/channel.h"
#include "kernels/weights/shm_segment.h"

namespace primerl {

inline constexpr size_t kShmVersionsMax = 16;  // of ChannelSetup::versions_max
/// Segments of one channel: two versions each of 255 keys, and the one that is written.
inline constexpr size_t kShmSlotsMax = 512;

/// A piece of a device's memory that the publisher offers (shm_places.h): a number below
/// kShmPlacesMax.
using ShmPlace = uint8_t;
inline constexpr ShmPlace kShmPlacesMax = 64;

/// A slot that exists: a version that can be read, or free room for one.
struct ShmSlotEntry {
  KeyedVersion version;      // none: free
  uint64_t serial = 0;       // of the segment's name
  uint64_t publication = 0;  // counts publishes of this channel: tells two of one version apart
  uint64_t num_bytes = 0;    // of the segment

  bool is_free() const { return version.version.is_none(); }
};

struct ShmTable {
  uint64_t turn = 0;                // writes so far
  std::vector<ShmSlotEntry> slots;  // oldest publication first

  const ShmSlotEntry* find(const KeyedVersion& version) const;
  /// The last published of `key`; null when there is none.
  const ShmSlotEntry* newest(WeightsKey key) const;
};

class ShmDirectory {
 public:
  static constexpr const char* kPrefix = "primerl-w-";
  static std::string owner_name(std::string_view shm_owner);
  static std::string key_of(const ChannelSetup& setup);
  static std::string slot_name(const std::string& key, uint64_t serial);

  /// As the publisher. kExists when another one lives.
  static Result<std::unique_ptr<ShmDirectory>> claim(const ChannelSetup& setup);
  /// As a receiver. kNotFound when no publisher has come yet.
  static Result<std::unique_ptr<ShmDirectory>> join(const ChannelSetup& setup);
  /// Lets go; the last end removes every segment of the channel.
  ~ShmDirectory();

  const std::string& key() const { return key_; }
  /// kUnavailable when the publisher wrote faster than this could read, many times in a row.
  Result<ShmTable> read() const;
  /// By the publisher alone.
  void write(ShmTable table);
  /// Whether the publisher lives, asked by a receiver.
  bool has_publisher() const;
  /// By the publisher: offers a place until withdraw(), or until it dies; false while a receiver
  /// has it open.
  bool offer(ShmPlace place);
  void withdraw(ShmPlace place);
  bool is_open(ShmPlace place);
  /// By a receiver, before it opens a place: it has it open while the answer lives. kUnavailable:
  /// the publisher is looking at it, or the directory has been removed.
  Result<std::unique_ptr<ShmSegment>> hold(ShmPlace place) const;
  /// Of one that is held.
  static bool is_offered(const ShmSegment& held, ShmPlace place);
  /// Said by a receiver that cannot open the memory of the publisher's device, for as long as the
  /// channel lives.
  void refuse_devices(std::string_view why) const;
  /// The first such reason; empty: nobody said so.
  std::string devices_refused() const;
  /// By a new publisher: what was said to the one before.
  void forget_refusal() const;
  /// False when somebody has removed the channel's segments under the live ends.
  bool is_named() const { return segment_->is_named(); }

  /// Removes the channel `key` when no end of it lives; else does nothing.
  static bool remove_if_left(const std::string& key, ShmLeftover& removed);

 private:
  ShmDirectory(std::string key, std::unique_ptr<ShmSegment> segment)
      : key_(std::move(key)), segment_(std::move(segment)) {}

  const std::string key_;
  const std::unique_ptr<ShmSegment> segment_;
};

}  // namespace primerl
