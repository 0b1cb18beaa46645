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

MessageBatch batch_of(uint32_t from, uint32_t to, Note note) {
  MessageBatch batch;
  batch.from = GroupId(from);
  batch.to = GroupId(to);
  batch.incarnation = 1;
  BatchedMessage message;
  message.link = LinkId(from);
  message.envelope.edge = EdgeId(from);
  message.envelope.sequence = note.number;
  message.envelope.incarnation = 1;
  message.envelope.blob_bytes = note.blob.size();
  message.envelope.payload = Payload::of(std::move(note));
  batch.messages.push_back(std::move(message));
  return batch;
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

MessageBatch note_batch(uint32_t from, uint32_t to, uint64_t number, size_t blob_bytes) {
  return batch_of(from, to, {number, {"a note"}, blob_of(number, blob_bytes)});
}

MessageBatch text_batch(uint32_t from, uint32_t to, uint64_t number, size_t text_bytes) {
  // A longer line would be outside the body; each line has three bytes of header.
  constexpr size_t kLineBytes = kTextBytesInBodyMax - 3;
  std::vector<std::string> lines;
  for (size_t left = text_bytes; left > 0; left -= std::min(left, kTextBytesInBodyMax))
    lines.emplace_back(std::min(left, kLineBytes), 'x');
  return batch_of(from, to, {number, std::move(lines), blob_of(number, 0)});
}

std::string describe(const MessageBatch& batch) {
  std::string text =
      fmt::format("{} -> {} incarnation {}", batch.from, batch.to, batch.incarnation);
  for (const Grant& grant : batch.grants)
    text += fmt::format(" grant {} {} {} {}", grant.link, grant.num_messages, grant.num_bytes,
                        grant.incarnation);
  for (const BatchedMessage& message : batch.messages) {
    const Envelope& envelope = message.envelope;
    text +=
        fmt::format(" message {} edge {} from {} to {} tenant {} origin {} incarnation {} seq {}",
                    message.link, envelope.edge, envelope.sender, envelope.target, envelope.tenant,
                    envelope.origin, envelope.incarnation, envelope.sequence);
    text += fmt::format(" cause {} {} at {} blobs {} note {}", envelope.cause.instance,
                        envelope.cause.step, envelope.sent_at.to_nanoseconds(), envelope.blob_bytes,
                        envelope.payload.as<Note>().number);
  }
  return text;
}

TransportIdentity identity_of(size_t side, uint32_t incarnation) {
  return {"a run",
          7,
          note_types(),
          ProcessId(static_cast<uint32_t>(side)),
          fmt::format("side{}", side),
          incarnation};
}

std::string pass_of(size_t side) { return fmt::format("the pass of side {}", side); }

void CollectingReceiver::deliver(ProcessId, MessageBatch&& batch) {
  std::unique_lock lock(mutex_);
  if (may_hold_) changed_.wait(lock, [this] { return !is_held_; });
  num_messages_ += batch.messages.size();
  batches_.push_back(std::move(batch));
  changed_.notify_all();
}

void CollectingReceiver::on_connection_up(ProcessId, uint32_t) {
  const std::lock_guard lock(mutex_);
  ++num_ups_;
  changed_.notify_all();
}

void CollectingReceiver::on_connection_down(ProcessId, uint32_t, const Error& why) {
  const std::lock_guard lock(mutex_);
  downs_.push_back(why.message());
  changed_.notify_all();
}

void CollectingReceiver::on_refused(const ConnectionRefusal& refusal) {
  const std::lock_guard lock(mutex_);
  refusals_.push_back(refusal);
  changed_.notify_all();
}

void CollectingReceiver::on_connection_failed(ProcessId, uint32_t, const Error& why) {
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
  batches_.clear();
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

std::vector<MessageBatch> CollectingReceiver::batches() const {
  const std::lock_guard lock(mutex_);
  return batches_;
}

std::vector<uint64_t> CollectingReceiver::numbers_from(GroupId from) const {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> numbers;
  for (const MessageBatch& batch : batches_)
    if (batch.from == from)
      for (const BatchedMessage& message : batch.messages)
        numbers.push_back(message.envelope.payload.as<Note>().number);
  return numbers;
}

std::vector<size_t> CollectingReceiver::blob_sizes() const {
  const std::lock_guard lock(mutex_);
  std::vector<size_t> sizes;
  for (const MessageBatch& batch : batches_)
    for (const BatchedMessage& message : batch.messages)
      sizes.push_back(message.envelope.payload.as<Note>().blob.size());
  return sizes;
}

bool CollectingReceiver::is_whole() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(batches_.begin(), batches_.end(), [](const MessageBatch& batch) {
    return std::all_of(batch.messages.begin(), batch.messages.end(), [](const auto& message) {
      const Note& note = message.envelope.payload.template as<Note>();
      return note.blob == blob_of(note.number, note.blob.size()) &&
             message.envelope.blob_bytes == note.blob.size();
    });
  });
}

std::vector<ConnectionRefusal> CollectingReceiver::refusals() const {
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
  static const CollectingReceiver clock;  // only used to wait
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
    for (const ConnectionStatus& status : transport->status()) {
      text += fmt::format(
          "to '{}' {}: sent {} acknowledged {} abandoned {} received {} frames {} resent {} "
          "breaks {}",
          status.name, to_string(status.state), status.sent.num_batches,
          status.acknowledged.num_batches, status.abandoned.num_batches,
          status.received.num_batches, status.num_frames_sent, status.num_frames_resent,
          status.num_breaks);
      for (size_t i = 0; i < status.refused.size(); ++i)
        if (status.refused[i] > 0)
          text += fmt::format(" {}={}", to_string(static_cast<FrameRefusal>(i)), status.refused[i]);
      text += "\n";
    }
  }
  return text;
}

PeerSpec TransportStage::peer_of(size_t side, uint32_t incarnation) const {
  PeerSpec peer;
  peer.process = ProcessId(static_cast<uint32_t>(1 - side));
  peer.name = fmt::format("side{}", 1 - side);
  peer.incarnation = incarnation;
  peer.public_key = public_key_of(1 - side);
  peer.pass = pass_of(1 - side);
  peer.shares_memory = shares_memory_;
  if (side == 1) peer.address = address_of_0_;
  return peer;
}

}  // namespace primerl
