/// The environment of the transport conformance suite: a receiver that collects, batches to send,
/// and the stage with two processes, which each transport's test file provides.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/transport/transport.h"
#include "tests/base/patience.h"

namespace primerl {

/// The message that the tests send.
struct Note {
  static constexpr std::string_view kName = "Note";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  std::vector<std::string> lines;
  Blob blob;
  template <class F>
  static void fields(F& f) {
    f("number", &Note::number)("lines", &Note::lines)("blob", &Note::blob);
  }
};

struct OtherNote {
  static constexpr std::string_view kName = "OtherNote";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  template <class F>
  static void fields(F& f) {
    f("number", &OtherNote::number);
  }
};

std::shared_ptr<const WireTypes> note_types();
std::shared_ptr<const WireTypes> other_types();

/// One Note from one group to another; the Blob's bytes depend on its number.
MessageBatch note_batch(uint32_t from, uint32_t to, uint64_t number, size_t blob_bytes = 0);
/// A batch with a body of about `text_bytes`.
MessageBatch text_batch(uint32_t from, uint32_t to, uint64_t number, size_t text_bytes);
/// Every value of a batch, as text.
std::string describe(const MessageBatch& batch);

/// An identity without a pass.
TransportIdentity identity_of(size_t side, uint32_t incarnation);
std::string pass_of(size_t side);

class CollectingReceiver final : public TransportReceiver {
 public:
  void deliver(ProcessId from, MessageBatch&& batch) override;
  void on_connection_up(ProcessId peer, uint32_t incarnation) override;
  void on_connection_down(ProcessId peer, uint32_t incarnation, const Error& why) override;
  void on_refused(const ConnectionRefusal& refusal) override;
  void on_connection_failed(ProcessId peer, uint32_t incarnation, const Error& why) override;
  bool next_stream(ProcessId peer, uint32_t incarnation, StreamFrame& frame) override;
  void receive_stream(ProcessId from, uint32_t incarnation, const StreamFrame& frame) override;

  /// Sets the frames that next_stream() returns from now on, in order.
  void give_streams(const std::vector<StreamFrame>& frames);
  size_t num_streams_left() const;  // number of those that are left
  /// The received frames, in order.
  std::vector<StreamFrame> streams() const;
  size_t num_streams() const { return streams().size(); }
  /// While held, deliver() does not return; only for transports that call it on another thread.
  void hold(bool is_held);
  /// For transports where no other thread could release it: deliver() then never waits.
  void never_hold() { may_hold_ = false; }
  void clear();

  uint64_t num_messages() const;
  std::vector<MessageBatch> batches() const;
  std::vector<uint64_t> numbers_from(GroupId from) const;
  std::vector<size_t> blob_sizes() const;
  /// Whether every Blob has the bytes of its number.
  bool is_whole() const;
  std::vector<ConnectionRefusal> refusals() const;
  std::vector<std::string> failures() const;
  std::vector<std::string> downs() const;
  size_t num_failed() const { return failures().size(); }
  size_t num_downs() const { return downs().size(); }
  uint64_t num_ups() const;

  /// Waits a short time for a change.
  void wait_for_change() const;

 private:
  bool may_hold_ = true;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_held_ = false;
  std::vector<MessageBatch> batches_;
  uint64_t num_messages_ = 0;
  std::vector<ConnectionRefusal> refusals_;
  std::vector<std::string> failures_;
  std::vector<std::string> downs_;
  uint64_t num_ups_ = 0;
  std::deque<StreamFrame> streams_to_give_;
  std::vector<StreamFrame> streams_;
};

/// A frame whose bytes depend on the number.
StreamFrame stream_frame(uint32_t stream, uint64_t number, size_t head_bytes, size_t body_bytes);
bool are_equal(const StreamFrame& one, const StreamFrame& other);

/// Two processes, 0 and 1; 1 connects to 0.
class TransportStage {
 public:
  virtual ~TransportStage() = default;
  virtual void open(size_t side, const TransportIdentity& identity, const ConnectionLimits& limits,
                    CollectingReceiver& receiver) = 0;
  Transport& transport(size_t side) { return *transports_[side]; }
  /// The process ends without bye.
  virtual void kill(size_t side) = 0;
  /// The connection breaks, frames in transit are lost, and it is restored.
  virtual void break_connection() = 0;
  /// Waits until `done` is true; false after a long time.
  virtual bool wait(const std::function<bool()>& done);
  /// Whether a frame that is sent only once may be lost.
  virtual bool may_lose_goodbye() const { return false; }
  /// Text for failures: seeds, counts.
  virtual std::string describe() const;

  /// What `side` must know about the other process.
  PeerSpec peer_of(size_t side, uint32_t incarnation) const;

 protected:
  virtual std::string public_key_of(size_t side) const {
    (void)side;
    return {};
  }
  std::unique_ptr<Transport> transports_[2];
  PeerAddress address_of_0_;
  bool shares_memory_ = false;  // as if both were on one machine
};

}  // namespace primerl
