#include "tests/conformance/transport_stage.h"

#include <algorithm>
#include <chrono>

#include "graph/base/random.h"

namespace primerl {
namespace {

Blob blob_of(uint64_t number, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(number * 31 + i * 7 + i / 251);
  return Blob(std::move(bytes));
}

Parcel parcel_of(uint32_t from, uint32_t to, Note note) {
  Parcel parcel;
  parcel.from = HostId(from);
  parcel.to = HostId(to);
  parcel.epoch = 1;
  ParcelMessage message;
  message.link = LinkId(from);
  message.envelope.edge = EdgeId(from);
  message.envelope.sequence = note.number;
  message.envelope.epoch = 1;
  message.envelope.blob_bytes = note.blob.size();
  message.envelope.payload = Payload::of(std::move(note));
  parcel.messages.push_back(std::move(message));
  return parcel;
}

}  // namespace

std::shared_ptr<const WireTypes> note_types() {
  static const auto types = std::make_shared<const WireTypes>(std::vector{&message_type<Note>()});
  return types;
}

std::shared_ptr<const WireTypes> other_types() {
  static const auto types = std::make_shared<const WireTypes>(
      std::vector{&message_type<Note>(), &message_type<OtherNote>()});
  return types;
}

Parcel note_parcel(uint32_t from, uint32_t to, uint64_t number, size_t blob_bytes) {
  return parcel_of(from, to, {number, "a note", blob_of(number, blob_bytes)});
}

Parcel text_parcel(uint32_t from, uint32_t to, uint64_t number, size_t text_bytes) {
  return parcel_of(from, to, {number, std::string(text_bytes, 'x'), blob_of(number, 0)});
}

std::string describe(const Parcel& parcel) {
  std::string text = fmt::format("{} -> {} epoch {}", parcel.from, parcel.to, parcel.epoch);
  for (const Grant& grant : parcel.grants)
    text += fmt::format(" grant {} {} {} {}", grant.link, grant.num_messages, grant.num_bytes,
                        grant.epoch);
  for (const ParcelMessage& message : parcel.messages) {
    const Envelope& envelope = message.envelope;
    text += fmt::format(" message {} edge {} from {} to {} tenant {} origin {} epoch {} seq {}",
                        message.link, envelope.edge, envelope.sender, envelope.target,
                        envelope.tenant, envelope.origin, envelope.epoch, envelope.sequence);
    text += fmt::format(" cause {} {} at {} blobs {} note {}", envelope.cause.instance,
                        envelope.cause.step, envelope.sent_at.to_nanoseconds(), envelope.blob_bytes,
                        envelope.payload.as<Note>().number);
  }
  return text;
}

TransportIdentity identity_of(size_t side, uint32_t epoch) {
  return {
      "a run", 7, note_types(), ProcessId(static_cast<uint32_t>(side)), fmt::format("side{}", side),
      epoch};
}

std::string pass_of(size_t side) { return fmt::format("the pass of side {}", side); }

void CollectingReceiver::deliver(ProcessId, Parcel&& parcel) {
  std::unique_lock lock(mutex_);
  if (may_hold_) changed_.wait(lock, [this] { return !is_held_; });
  num_messages_ += parcel.messages.size();
  parcels_.push_back(std::move(parcel));
  changed_.notify_all();
}

void CollectingReceiver::on_link_up(ProcessId, uint32_t) {
  const std::lock_guard lock(mutex_);
  ++num_ups_;
  changed_.notify_all();
}

void CollectingReceiver::on_link_down(ProcessId, uint32_t, const Error& why) {
  const std::lock_guard lock(mutex_);
  downs_.push_back(why.message());
  changed_.notify_all();
}

void CollectingReceiver::on_refused(const LinkRefusal& refusal) {
  const std::lock_guard lock(mutex_);
  refusals_.push_back(refusal);
  changed_.notify_all();
}

void CollectingReceiver::on_link_failed(ProcessId, uint32_t, const Error& why) {
  const std::lock_guard lock(mutex_);
  failures_.push_back(why.message());
  changed_.notify_all();
}

bool CollectingReceiver::next_stream(ProcessId, uint32_t, StreamFrame& frame) {
  const std::lock_guard lock(mutex_);
  if (streams_to_give_.empty()) return false;
  frame = std::move(streams_to_give_.front());
  streams_to_give_.pop_front();
  return true;
}

void CollectingReceiver::receive_stream(ProcessId, uint32_t, const StreamFrame& frame) {
  const auto copy = [](const Blob& blob) {
    return Blob(std::vector<std::byte>(blob.bytes().begin(), blob.bytes().end()));
  };
  const std::lock_guard lock(mutex_);
  streams_.push_back({frame.stream, copy(frame.head), copy(frame.body)});
  changed_.notify_all();
}

void CollectingReceiver::give_streams(const std::vector<StreamFrame>& frames) {
  const std::lock_guard lock(mutex_);
  streams_to_give_.insert(streams_to_give_.end(), frames.begin(), frames.end());
}

size_t CollectingReceiver::num_streams_left() const {
  const std::lock_guard lock(mutex_);
  return streams_to_give_.size();
}

std::vector<StreamFrame> CollectingReceiver::streams() const {
  const std::lock_guard lock(mutex_);
  return streams_;
}

StreamFrame stream_frame(uint32_t stream, uint64_t number, size_t head_bytes, size_t body_bytes) {
  return {stream, blob_of(number, head_bytes), blob_of(number + 1, body_bytes)};
}

bool are_equal(const StreamFrame& one, const StreamFrame& other) {
  return one.stream == other.stream && one.head == other.head && one.body == other.body;
}

void CollectingReceiver::hold(bool is_held) {
  const std::lock_guard lock(mutex_);
  is_held_ = is_held;
  changed_.notify_all();
}

void CollectingReceiver::clear() {
  const std::lock_guard lock(mutex_);
  parcels_.clear();
  num_messages_ = 0;
  refusals_.clear();
  failures_.clear();
  downs_.clear();
  num_ups_ = 0;
}

uint64_t CollectingReceiver::num_messages() const {
  const std::lock_guard lock(mutex_);
  return num_messages_;
}

std::vector<Parcel> CollectingReceiver::parcels() const {
  const std::lock_guard lock(mutex_);
  return parcels_;
}

std::vector<uint64_t> CollectingReceiver::numbers_from(HostId from) const {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> numbers;
  for (const Parcel& parcel : parcels_)
    if (parcel.from == from)
      for (const ParcelMessage& message : parcel.messages)
        numbers.push_back(message.envelope.payload.as<Note>().number);
  return numbers;
}

std::vector<size_t> CollectingReceiver::blob_sizes() const {
  const std::lock_guard lock(mutex_);
  std::vector<size_t> sizes;
  for (const Parcel& parcel : parcels_)
    for (const ParcelMessage& message : parcel.messages)
      sizes.push_back(message.envelope.payload.as<Note>().blob.size());
  return sizes;
}

bool CollectingReceiver::is_whole() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(parcels_.begin(), parcels_.end(), [](const Parcel& parcel) {
    return std::all_of(parcel.messages.begin(), parcel.messages.end(), [](const auto& message) {
      const Note& note = message.envelope.payload.template as<Note>();
      return note.blob == blob_of(note.number, note.blob.size()) &&
             message.envelope.blob_bytes == note.blob.size();
    });
  });
}

std::vector<LinkRefusal> CollectingReceiver::refusals() const {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

std::vector<std::string> CollectingReceiver::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

std::vector<std::string> CollectingReceiver::downs() const {
  const std::lock_guard lock(mutex_);
  return downs_;
}

uint64_t CollectingReceiver::num_ups() const {
  const std::lock_guard lock(mutex_);
  return num_ups_;
}

void CollectingReceiver::wait_for_change() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(1));
}

bool TransportStage::wait(const std::function<bool()>& done) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.to_nanoseconds());
  static const CollectingReceiver clock;  // only to wait with
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    clock.wait_for_change();
  }
  return true;
}

std::string TransportStage::describe() const {
  std::string text;
  for (const auto& transport : transports_) {
    if (transport == nullptr) continue;
    for (const LinkStatus& status : transport->status()) {
      text += fmt::format(
          "to '{}' {}: sent {} acknowledged {} abandoned {} received {} frames {} resent {} "
          "breaks {}",
          status.name, to_string(status.state), status.sent.num_parcels,
          status.acknowledged.num_parcels, status.abandoned.num_parcels,
          status.received.num_parcels, status.num_frames_sent, status.num_frames_resent,
          status.num_breaks);
      for (size_t i = 0; i < status.refused.size(); ++i)
        if (status.refused[i] > 0)
          text += fmt::format(" {}={}", to_string(static_cast<FrameRefusal>(i)), status.refused[i]);
      text += "\n";
    }
  }
  return text;
}

PeerSpec TransportStage::peer_of(size_t side, uint32_t epoch) const {
  PeerSpec peer;
  peer.process = ProcessId(static_cast<uint32_t>(1 - side));
  peer.name = fmt::format("side{}", 1 - side);
  peer.epoch = epoch;
  peer.public_key = public_key_of(1 - side);
  peer.pass = pass_of(1 - side);
  peer.shares_memory = shares_memory_;
  if (side == 1) peer.address = address_of_0_;
  return peer;
}

}  // namespace primerl
