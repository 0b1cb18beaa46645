/// Weights over a link: both ends of a chunked, resumable transfer, without the link.
/// stream_channel.h makes a channel of them.
///
///   publisher's process                               receiver's process
///   StreamLibrary <- publish()                          WeightStreamReceiver
///       ^                                                |  ask()    -> Want
///   WeightStreamSender (one per receiver)  <- handle() ----+
///       |  next() -> Offer, Chunk, Chunk, ... or Refusal -> handle() -> take()
///
/// The owner of a link moves the frames, in order, when it has space: nothing here waits or starts
/// a thread. A link may break at any time. Then the owner drops the frames in flight (sender's
/// reset()) and the receiver asks again. The transfer resumes at the byte where it stopped if the
/// version still has the same record, else from the start. A chunk's body is a view of the
/// published tensor: nothing is copied before the receiver. A request for the newest versions is
/// kept until there is a version of any key that the receiver does not have, so that its bytes are
/// sent as soon as it is published. Among several versions, the one published first is sent first.
/// A tensor's CRC-32C is checked when its last byte arrives, and no tensor is returned before all
/// are verified. Manifests are compared before any data is requested.
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

/// A frame for a link: `head` is small, `body` is a chunk's bytes or empty.
struct PeerFrame {
  std::vector<std::byte> head;
  Blob body;
};

enum class WeightFrameKind : uint8_t { kWant, kOffer, kChunk, kRefusal };
/// The kind according to the head, verified later; kRefusal if it has none.
WeightFrameKind kind_of(const PeerFrame& frame);

/// A published version with the data that receivers need to know of it.
struct PublishedVersion {
  std::shared_ptr<const WeightSnapshot> snapshot;
  std::shared_ptr<const std::vector<std::byte>> manifest;  // encoded
  uint64_t manifest_hash = 0;
  std::vector<std::byte> record;  // encoded
};

/// The newest versions of each key, with checksums computed once for all receivers. Thread-safe.
class StreamLibrary {
 public:
  explicit StreamLibrary(size_t versions_max = 2) : versions_max_(versions_max) {}
  Status publish(std::shared_ptr<const WeightSnapshot> snapshot);
  /// Null if it does not exist (any more).
  std::shared_ptr<const PublishedVersion> find(const KeyedVersion& version) const;
  /// The one published first among the newest versions that are newer than in `has`; null: none.
  std::shared_ptr<const PublishedVersion> find_above(const VersionsByKey& has) const;
  /// Forgets all versions of `key`; one that is being sent is sent to its end.
  void drop(WeightsKey key);
  PolicyVersion newest(WeightsKey key) const;
  VersionsByKey newest_by_key() const;

 private:
  const size_t versions_max_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const PublishedVersion>> versions_;  // oldest first, of all keys
  VersionsByKey newest_;
  Handshake handshake_;
};

/// Serves one receiver. Not thread-safe: belongs to the link's thread.
class WeightStreamSender {
 public:
  /// `chunk_bytes` in 1..kStreamChunkBytesMax.
  explicit WeightStreamSender(std::shared_ptr<const StreamLibrary> library,
                              size_t chunk_bytes = size_t{1} << 20);
  /// Handles a frame of the receiver. A new request replaces the current one.
  Status handle(const PeerFrame& frame);
  /// The next frame to send; empty if the receiver has all it asked for.
  std::optional<PeerFrame> next();
  /// Call when the link has broken.
  void reset() {
    transfer_.reset();
    kept_.reset();
  }

 private:
  struct Transfer {
    std::shared_ptr<const PublishedVersion> version;
    std::vector<std::byte> head;  // to be sent before chunks; empty once it was sent
    size_t tensor = 0;            // of the next byte
    uint64_t offset = 0;          // of the next byte in it
  };

  /// Bytes of the wanted version that the receiver already has.
  struct Want {
    VersionsByKey above;
    uint64_t manifest = 0;
    uint64_t record = 0;
    size_t tensor = 0;
    uint64_t offset = 0;
  };
  void begin(std::shared_ptr<const PublishedVersion> version, const Want& want);

  const std::shared_ptr<const StreamLibrary> library_;
  const size_t chunk_bytes_;
  std::optional<Want> kept_;  // a request for the newest version, until there is one
  std::optional<Transfer> transfer_;
};

/// Receives versions of one publisher. Not thread-safe: belongs to the link's thread.
class WeightStreamReceiver {
 public:
  /// `bytes_max`: largest version; memory is allocated when a valid offer has arrived.
  explicit WeightStreamReceiver(uint64_t bytes_max = uint64_t{1} << 40) : bytes_max_(bytes_max) {}
  Status expect(const WeightManifest& wanted) { return handshake_.expect(wanted); }
  /// The request to send: for `version`; none(): for the newest of any key newer than in `above`,
  /// as soon as there is one. After a break, the transfer resumes where it stopped.
  PeerFrame ask(const KeyedVersion& version, const VersionsByKey& above = {});
  /// Handles a frame of the sender. An error ends the current transfer. kNotFound: the publisher
  /// does not have the version (any more). kInvalid: its tensors are not the expected ones.
  /// kCorrupt: wrong bytes (ask again).
  Status handle(const PeerFrame& frame);
  /// The version, once, when it is complete and verified; else null.
  std::shared_ptr<const WeightSnapshot> take();
  /// The version that was offered last, accepted or not.
  const KeyedVersion& offered() const { return offered_; }
  /// Received bytes of data of the current version, and their total.
  uint64_t num_received() const { return num_received_; }
  uint64_t num_expected() const { return num_expected_; }

 private:
  Status handle_offer(std::span<const std::byte> manifest, std::span<const std::byte> record,
                      size_t tensor, uint64_t offset);
  Status handle_chunk(const KeyedVersion& version, size_t tensor, uint64_t offset,
                      const Blob& body);
  Status prepare(std::span<const std::byte> record);
  void forget();
  /// Advances past complete (or empty) tensors; verifies each.
  Status verify_complete_tensors();

  const uint64_t bytes_max_;
  Handshake handshake_;
  WeightManifest manifest_;  // of the version offered last
  uint64_t manifest_hash_ = 0;
  bool has_manifest_ = false;
  KeyedVersion offered_;
  // The current version.
  std::vector<std::byte> record_bytes_;  // empty: none
  VersionRecord record_;
  std::vector<uint64_t> begins_;  // offset of each tensor in data_, multiples of 64
  std::vector<uint64_t> sizes_;
  std::shared_ptr<std::byte[]> data_;
  size_t tensor_ = 0;  // of the next byte
  uint64_t offset_ = 0;
  uint32_t check_ = 0;  // of the bytes of tensor_ so far
  uint64_t num_received_ = 0;
  uint64_t num_expected_ = 0;
};

}  // namespace primerl
