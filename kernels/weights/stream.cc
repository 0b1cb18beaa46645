#include "kernels/weights/stream.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "graph/base/random.h"
#include "kernels/weights/byte_codec.h"

namespace primerl {
namespace {

constexpr uint8_t kFrameVersion = 2;
constexpr uint64_t kStreamAlignment = 64;
constexpr size_t kRecordBytesMax = 40 + kManifestTensorsMax * sizeof(uint32_t);

using Kind = WeightFrameKind;

ByteWriter begin_frame(Kind kind, const KeyedVersion& version) {
  ByteWriter writer;
  writer.number(kFrameVersion);
  writer.number(static_cast<uint8_t>(kind));
  writer.key(version.key);
  writer.number(version.version.value);
  return writer;
}

struct FrameStart {
  Kind kind;
  KeyedVersion version;
};

void write_list(ByteWriter& writer, const VersionsByKey& versions) {
  writer.number(static_cast<uint32_t>(versions.list().size()));
  for (const auto& [key, version] : versions.list()) {
    writer.key(key);
    writer.number(version.value);
  }
}

Result<VersionsByKey> read_list(ByteReader& reader) {
  VersionsByKey versions;
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && reader.is_good(); ++i) {
    const WeightsKey key = reader.key();
    if (!versions.set(key, PolicyVersion(reader.number<int64_t>())))
      return error(Code::kExhausted, "versions of {} keys are more than {}", count,
                   kWeightsKeysMax);
  }
  return versions;
}

/// Identifies a record. (The CRC of bytes that end with their own CRC is the same for all.)
uint64_t name_of(std::span<const std::byte> record) {
  return stable_hash({reinterpret_cast<const char*>(record.data()), record.size()});
}

Error bad_frame(std::string_view why) {
  return error(Code::kCorrupt, "a malformed weight frame: {}", why);
}

Result<FrameStart> read_start(ByteReader& reader) {
  const auto version = reader.number<uint8_t>();
  const auto kind = reader.number<uint8_t>();
  const WeightsKey key = reader.key();
  const PolicyVersion policy(reader.number<int64_t>());
  if (!reader.is_good()) return bad_frame("its checksum is wrong");
  if (version != kFrameVersion)
    return bad_frame(fmt::format("format {}, this program reads {}", version, kFrameVersion));
  if (kind > static_cast<uint8_t>(Kind::kRefusal)) return bad_frame(fmt::format("kind {}", kind));
  return FrameStart{static_cast<Kind>(kind), {key, policy}};
}

}  // namespace

WeightFrameKind kind_of(const PeerFrame& frame) {
  if (frame.head.size() < 2 || frame.head[1] > static_cast<std::byte>(Kind::kRefusal))
    return Kind::kRefusal;
  return static_cast<Kind>(frame.head[1]);
}

Status StreamLibrary::publish(std::shared_ptr<const WeightSnapshot> snapshot) {
  if (snapshot == nullptr) return error(Code::kInvalid, "published weights are missing");
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(*snapshot));
  VersionRecord record{snapshot->name(), manifest.hash(), {}};
  for (const auto& tensor : snapshot->tensors)
    record.checks.push_back(crc32c(tensor.bytes.bytes()));
  auto version = std::make_shared<PublishedVersion>();
  version->manifest_hash = record.manifest_hash;
  version->manifest = std::make_shared<const std::vector<std::byte>>(encode(manifest));
  version->record = encode(record);
  version->snapshot = std::move(snapshot);
  const KeyedVersion published = version->snapshot->name();
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(handshake_.offer(manifest, published));
  RETURN_IF_ERROR(check_rises(newest_, published));
  CHECK(newest_.set(published.key, published.version), "a key more than was checked");
  versions_.push_back(std::move(version));
  const auto is_of_key = [&](const auto& one) { return one->snapshot->key == published.key; };
  if (static_cast<size_t>(std::ranges::count_if(versions_, is_of_key)) > versions_max_)
    versions_.erase(std::ranges::find_if(versions_, is_of_key));
  return ok();
}

std::shared_ptr<const PublishedVersion> StreamLibrary::find(const KeyedVersion& version) const {
  const std::lock_guard lock(mutex_);
  for (const auto& one : versions_)
    if (one->snapshot->name() == version) return one;
  return nullptr;
}

std::shared_ptr<const PublishedVersion> StreamLibrary::find_above(const VersionsByKey& has) const {
  const std::lock_guard lock(mutex_);
  for (const auto& one : versions_) {
    const auto [key, version] = one->snapshot->name();
    if (version == newest_.of(key) && version > has.of(key)) return one;
  }
  return nullptr;
}

void StreamLibrary::drop(WeightsKey key) {
  std::vector<std::shared_ptr<const PublishedVersion>> kept;
  const std::lock_guard lock(mutex_);
  for (auto& one : versions_)
    if (one->snapshot->key != key) kept.push_back(std::move(one));
  versions_ = std::move(kept);
  newest_.erase(key);
  handshake_.forget(key);
}

PolicyVersion StreamLibrary::newest(WeightsKey key) const {
  const std::lock_guard lock(mutex_);
  return newest_.of(key);
}

VersionsByKey StreamLibrary::newest_by_key() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

WeightStreamSender::WeightStreamSender(std::shared_ptr<const StreamLibrary> library,
                                       size_t chunk_bytes)
    : library_(std::move(library)), chunk_bytes_(chunk_bytes) {
  CHECK(chunk_bytes_ >= 1 && chunk_bytes_ <= kStreamChunkBytesMax, "chunks of an impossible size");
}

Status WeightStreamSender::handle(const PeerFrame& frame) {
  ByteReader reader(frame.head);
  ASSIGN_OR_RETURN(const FrameStart start, read_start(reader));
  Want want;
  ASSIGN_OR_RETURN(want.above, read_list(reader));
  want.manifest = reader.number<uint64_t>();
  want.record = reader.number<uint64_t>();
  want.tensor = reader.number<uint32_t>();
  want.offset = reader.number<uint64_t>();
  if (start.kind != Kind::kWant || !reader.is_done() || !frame.body.empty())
    return bad_frame("a receiver only asks");
  reset();
  if (start.version.version.is_none()) {
    kept_ = std::move(want);
    return ok();
  }
  if (auto version = library_->find(start.version)) {
    begin(std::move(version), want);
    return ok();
  }
  ByteWriter refusal = begin_frame(Kind::kRefusal, start.version);
  refusal.number(library_->newest(start.version.key).value);
  transfer_.emplace().head = refusal.take();
  return ok();
}

void WeightStreamSender::begin(std::shared_ptr<const PublishedVersion> found, const Want& want) {
  const PublishedVersion& version = *found;
  const auto& tensors = version.snapshot->tensors;
  Transfer transfer;
  // Continue at the receiver's position, if it has the start of exactly these bytes.
  if (want.record == name_of(version.record) && want.manifest == version.manifest_hash &&
      want.tensor < tensors.size() && want.offset <= tensors[want.tensor].bytes.size()) {
    transfer.tensor = want.tensor;
    transfer.offset = want.offset;
  }
  ByteWriter offer = begin_frame(Kind::kOffer, version.snapshot->name());
  offer.bytes(want.manifest == version.manifest_hash ? std::span<const std::byte>()
                                                     : std::span(*version.manifest));
  offer.bytes(version.record);
  offer.number(static_cast<uint32_t>(transfer.tensor));
  offer.number(transfer.offset);
  transfer.head = offer.take();
  transfer.version = std::move(found);
  transfer_ = std::move(transfer);
}

std::optional<PeerFrame> WeightStreamSender::next() {
  if (kept_) {
    if (auto version = library_->find_above(kept_->above))
      begin(std::move(version), *std::exchange(kept_, {}));
  }
  if (!transfer_) return std::nullopt;
  if (!transfer_->head.empty()) {
    PeerFrame frame{std::exchange(transfer_->head, {}), {}};
    if (transfer_->version == nullptr) transfer_.reset();
    return frame;
  }
  const auto& snapshot = transfer_->version->snapshot;
  const auto& tensors = snapshot->tensors;
  while (transfer_->tensor < tensors.size() &&
         transfer_->offset == tensors[transfer_->tensor].bytes.size()) {
    ++transfer_->tensor;
    transfer_->offset = 0;
  }
  if (transfer_->tensor == tensors.size()) {
    transfer_.reset();
    return std::nullopt;
  }
  const auto bytes = tensors[transfer_->tensor].bytes.bytes().subspan(transfer_->offset);
  const auto piece = bytes.first(std::min(bytes.size(), chunk_bytes_));
  ByteWriter chunk = begin_frame(Kind::kChunk, snapshot->name());
  chunk.number(static_cast<uint32_t>(transfer_->tensor));
  chunk.number(transfer_->offset);
  transfer_->offset += piece.size();
  return PeerFrame{chunk.take(), Blob(snapshot, piece)};
}

PeerFrame WeightStreamReceiver::ask(const KeyedVersion& version, const VersionsByKey& above) {
  if (!record_bytes_.empty() && record_.version != version && !version.version.is_none()) forget();
  ByteWriter want = begin_frame(Kind::kWant, version);
  write_list(want, above);
  want.number(has_manifest_ ? manifest_hash_ : uint64_t{0});
  want.number(record_bytes_.empty() ? uint64_t{0} : name_of(record_bytes_));
  want.number(static_cast<uint32_t>(tensor_));
  want.number(offset_);
  return {want.take(), {}};
}

Status WeightStreamReceiver::handle(const PeerFrame& frame) {
  ByteReader reader(frame.head);
  ASSIGN_OR_RETURN(const FrameStart start, read_start(reader));
  Status handled = bad_frame("a sender does not ask");
  if (start.kind == Kind::kRefusal) {
    const auto newest = reader.number<int64_t>();
    forget();
    if (!reader.is_done()) return bad_frame("a refusal of another size");
    return error(Code::kNotFound, "{} is not at the publisher", start.version)
        .note(newest < 0 ? fmt::format("nothing of {} was published yet", start.version.key)
                         : fmt::format("its newest is version {}", newest));
  }
  if (start.kind == Kind::kOffer) {
    offered_ = start.version;
    const auto manifest = reader.bytes(kManifestBytesMax);
    const auto record = reader.bytes(kRecordBytesMax);
    const auto tensor = reader.number<uint32_t>();
    const auto offset = reader.number<uint64_t>();
    handled = reader.is_done() ? handle_offer(manifest, record, tensor, offset)
                               : Status(bad_frame("an offer of another size"));
  } else if (start.kind == Kind::kChunk) {
    const auto tensor = reader.number<uint32_t>();
    const auto offset = reader.number<uint64_t>();
    handled = reader.is_done() ? handle_chunk(start.version, tensor, offset, frame.body)
                               : Status(bad_frame("a chunk of another size"));
  }
  if (!handled.ok()) forget();
  return handled;
}

Status WeightStreamReceiver::handle_offer(std::span<const std::byte> manifest,
                                          std::span<const std::byte> record, size_t tensor,
                                          uint64_t offset) {
  if (!manifest.empty()) {
    has_manifest_ = false;
    ASSIGN_OR_RETURN(manifest_, decode_manifest(manifest));
    manifest_hash_ = manifest_.hash();
    has_manifest_ = true;
  }
  ASSIGN_OR_RETURN(const auto decoded, decode_version_record(record));
  if (!has_manifest_ || decoded.manifest_hash != manifest_hash_ ||
      decoded.checks.size() != manifest_.tensors.size())
    return error(Code::kCorrupt, "{} was offered with another manifest", decoded.version);
  RETURN_IF_ERROR(handshake_.accept(manifest_, manifest_hash_));
  const bool goes_on =
      std::equal(record.begin(), record.end(), record_bytes_.begin(), record_bytes_.end()) &&
      tensor == tensor_ && offset == offset_;
  if (goes_on) return ok();
  if (tensor != 0 || offset != 0)
    return bad_frame("an offer to resume a transfer that was not started");
  return prepare(record);
}

Status WeightStreamReceiver::prepare(std::span<const std::byte> record) {
  forget();
  uint64_t end = 0;
  for (const auto& facts : manifest_.tensors) {
    ASSIGN_OR_RETURN(const uint64_t size, num_bytes(facts));
    begins_.push_back(end);
    sizes_.push_back(size);
    if (size > bytes_max_ || end > bytes_max_ - size)
      return error(Code::kExhausted, "the offered version needs more than the limit of {} bytes",
                   bytes_max_);
    end += (size + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment;
    num_expected_ += size;
  }
  auto* const data = new (std::align_val_t(kStreamAlignment), std::nothrow) std::byte[end];
  if (data == nullptr)
    return error(Code::kExhausted, "there is no memory for the {} bytes of the offered version",
                 end);
  data_ = std::shared_ptr<std::byte[]>(data, [](std::byte* bytes) {
    ::operator delete[](bytes, std::align_val_t(kStreamAlignment));
  });
  ASSIGN_OR_RETURN(record_, decode_version_record(record));
  record_bytes_.assign(record.begin(), record.end());
  return verify_complete_tensors();
}

Status WeightStreamReceiver::handle_chunk(const KeyedVersion& version, size_t tensor,
                                          uint64_t offset, const Blob& body) {
  if (record_bytes_.empty() || version != record_.version)
    return bad_frame(fmt::format("a chunk of {} that was not offered", version));
  if (tensor != tensor_ || offset != offset_ || tensor_ >= sizes_.size() || body.empty() ||
      body.size() > sizes_[tensor_] - offset_)
    return bad_frame(fmt::format("a chunk of {} bytes at {} of tensor {}, due was {} of tensor {}",
                                 body.size(), offset, tensor, offset_, tensor_));
  // The checksum reads what the copy has just loaded into the cache.
  check_ = crc32c(body.bytes(), check_);
  std::memcpy(data_.get() + begins_[tensor_] + offset_, body.bytes().data(), body.size());
  offset_ += body.size();
  num_received_ += body.size();
  return verify_complete_tensors();
}

Status WeightStreamReceiver::verify_complete_tensors() {
  while (tensor_ < sizes_.size() && offset_ == sizes_[tensor_]) {
    if (check_ != record_.checks[tensor_])
      return wrong_check(record_.version, manifest_.tensors[tensor_], check_,
                         record_.checks[tensor_]);
    ++tensor_;
    offset_ = 0;
    check_ = 0;
  }
  return ok();
}

std::shared_ptr<const WeightSnapshot> WeightStreamReceiver::take() {
  if (record_bytes_.empty() || tensor_ < sizes_.size()) return nullptr;
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->key = record_.version.key;
  snapshot->version = record_.version.version;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const auto& facts = manifest_.tensors[i];
    snapshot->tensors.push_back(
        {facts.name, facts.type, facts.shape, Blob(data_, {data_.get() + begins_[i], sizes_[i]})});
  }
  forget();
  return snapshot;
}

void WeightStreamReceiver::forget() {
  record_bytes_.clear();
  record_ = {};
  begins_.clear();
  sizes_.clear();
  data_.reset();
  tensor_ = 0;
  offset_ = num_received_ = num_expected_ = 0;
  check_ = 0;
}

}  // namespace primerl
