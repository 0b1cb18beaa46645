/// Weights over a link: the halves of a chunked, resumable transfer, without the link. A channel
/// of them is stream_channel.h.
///
///   publisher's process                               receiver's process
///   StreamLibrary <- publish()                          WeightStreamReceiver
///       ^                                                |  ask()    -> Want
///   WeightStreamSender (one per receiver)  <- handle() ----+
///       |  next() -> Offer, Chunk, Chunk, ... or Refusal -> handle() -> take()
///
/// Whoever owns a link moves the frames, in order, when it has room: nothing here waits, nor starts
/// a thread. A link may break anywhere: the owner drops what was under way (sender's reset()) and
/// the receiver asks again; it goes on at the byte where it stopped if the version still has the
/// same record, else from the start. A chunk's body views the published tensor: nothing is copied
/// before the receiver. A wish for the newest versions is kept until there is one of any key that
/// the receiver does not have, so that its bytes leave as soon as it is published; of several the
/// one published first goes first. A tensor's CRC-32C is checked
/// as its last byte arrives, and nothing is given out before all are right. Manifests are compared
/// before a byte of data is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/weights/handshake.h"
#include "kernels/weights/manifest.h"

namespace primerl {

inline constexpr size_t kStreamChunkBytesMax = size_t{4} << 20;  // of a chunk's body

/// What one end hands to a link: `head` is small, `body` a chunk's bytes or empty.
struct PeerFrame {
  std::vector<std::byte> head;
  Blob body;
};

enum class WeightFrameKind : uint8_t { kWant, kOffer, kChunk, kRefusal };
/// As the head says, checked later; kRefusal where it says nothing.
WeightFrameKind kind_of(const PeerFrame& frame);

/// A published version with what receivers must know of it.
struct PeerProtocolVersion {
  std::shared_ptr<const WeightSnapshot> snapshot;
  std::shared_ptr<const std::vector<std::byte>> manifest;  // encoded
  uint64_t manifest_hash = 0;
  std::vector<std::byte> record;  // encoded
};

/// The newest versions of each key, checksummed once however many receivers there are. Thread-safe.
class StreamLibrary {
 public:
  explicit StreamLibrary(size_t versions_max = 2) : versions_max_(versions_max) {}
  Status publish(std::shared_ptr<const WeightSnapshot> snapshot);
  /// Null when it is not there (any more).
  std::shared_ptr<const PeerProtocolVersion> find(const KeyedVersion& version) const;
  /// Of the newest versions that are above what `has` says, the one published first; null: none is.
  std::shared_ptr<const PeerProtocolVersion> find_above(const VersionsByKey& has) const;
  PolicyVersion newest(WeightsKey key) const;
  VersionsByKey newest_by_key() const;

 private:
  const size_t versions_max_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const PeerProtocolVersion>> versions_;  // oldest first, of all keys
  VersionsByKey newest_;
  Handshake handshake_;
};

/// Serves one receiver. Not thread-safe: belongs to the link's thread.
class WeightStreamSender {
 public:
  /// `chunk_bytes` in 1..kStreamChunkBytesMax.
  explicit WeightStreamSender(std::shared_ptr<const StreamLibrary> library,
                              size_t chunk_bytes = size_t{1} << 20);
  /// A frame of the receiver. A new wish replaces the one in hand.
  Status handle(const PeerFrame& frame);
  /// What to send next; nothing when the receiver has all it asked for.
  std::optional<PeerFrame> next();
  /// The link broke.
  void reset() {
    transfer_.reset();
    kept_.reset();
  }

 private:
  struct Transfer {
    std::shared_ptr<const PeerProtocolVersion> version;
    std::vector<std::byte> head;  // to be sent before chunks; empty once it was
    size_t tensor = 0;            // of the next byte
    uint64_t offset = 0;          // of the next byte in it
  };

  /// What the receiver said that it has of the bytes it wants.
  struct Want {
    VersionsByKey above;
    uint64_t manifest = 0;
    uint64_t record = 0;
    size_t tensor = 0;
    uint64_t offset = 0;
  };
  void begin(std::shared_ptr<const PeerProtocolVersion> version, const Want& want);

  const std::shared_ptr<const StreamLibrary> library_;
  const size_t chunk_bytes_;
  std::optional<Want> kept_;  // for the newest version, until there is one
  std::optional<Transfer> transfer_;
};

/// Takes versions of one publisher. Not thread-safe: belongs to the link's thread.
class WeightStreamReceiver {
 public:
  /// `bytes_max`: largest version; memory is taken when its offer has come and is good.
  explicit WeightStreamReceiver(uint64_t bytes_max = uint64_t{1} << 40) : bytes_max_(bytes_max) {}
  Status expect(const WeightManifest& wanted) { return handshake_.expect(wanted); }
  /// The wish to send: `version`; none: the newest of any key above `above`, as soon as there is
  /// one. Asked for again after a break, it goes on where it was.
  PeerFrame ask(const KeyedVersion& version, const VersionsByKey& above = {});
  /// A frame of the sender. An error ends the transfer in hand: kNotFound when the publisher does
  /// not have the version (any more), kInvalid when its tensors are not the expected ones, kCorrupt
  /// when bytes were not what they must be (ask again).
  Status handle(const PeerFrame& frame);
  /// The version, once, when all of it has come and was verified; else null.
  std::shared_ptr<const WeightSnapshot> take();
  /// The version that was offered last, good or not.
  const KeyedVersion& offered() const { return offered_; }
  /// Bytes of data that have come of the version in hand, and that it has.
  uint64_t num_received() const { return num_received_; }
  uint64_t num_expected() const { return num_expected_; }

 private:
  Status handle_offer(std::span<const std::byte> manifest, std::span<const std::byte> record,
                      size_t tensor, uint64_t offset);
  Status handle_chunk(const KeyedVersion& version, size_t tensor, uint64_t offset,
                      const Blob& body);
  Status prepare(std::span<const std::byte> record);
  void forget();
  /// Past tensors that are complete (or empty); verifies each.
  Status settle();

  const uint64_t bytes_max_;
  Handshake handshake_;
  WeightManifest manifest_;  // of the version offered last
  uint64_t manifest_hash_ = 0;
  bool has_manifest_ = false;
  KeyedVersion offered_;
  // The version in hand.
  std::vector<std::byte> record_bytes_;  // empty: none
  VersionRecord record_;
  std::vector<uint64_t> begins_;  // of each tensor in data_, multiples of 64
  std::vector<uint64_t> sizes_;
  std::shared_ptr<std::byte[]> data_;
  size_t tensor_ = 0;  // of the next byte
  uint64_t offset_ = 0;
  uint32_t check_ = 0;  // of the bytes of tensor_ so far
  uint64_t num_received_ = 0;
  uint64_t num_expected_ = 0;
};

}  // namespace primerl
