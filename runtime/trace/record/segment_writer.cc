#include "runtime/trace/record/segment_writer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/random.h"
#include "graph/base/real_clock.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/record/blob_ledger.h"
#include "runtime/trace/record/gap_ledger.h"
#include "runtime/trace/record/ring_files.h"
#include "runtime/trace/record/sealed_segments.h"
#include "runtime/trace/record/segment_buffer.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kReadySegments = 2;                            // prepared in advance
constexpr size_t kFileBuffers = 5;                              // ready, current and being sealed
constexpr Duration kPrepareAgain = Duration::milliseconds(20);  // after a full disk
constexpr Duration kPackMax = Duration::seconds(20);            // for close() to pack segments

class Writer final : public SegmentWriter {
  using Lock = std::unique_lock<std::mutex>;

 public:
  explicit Writer(SegmentWriterOptions options)
      : options_(std::move(options)),
        blobs_(options_.folder, options_.process, options_.incarnation,
               options_.level == TraceLevel::kPower) {}
  ~Writer() override { stop(); }

  Status start();
  bool append(std::span<std::byte> head, std::span<const std::byte> tail) override;
  Result<std::array<std::byte, 32>> store(std::span<const std::byte> bytes) override {
    return blobs_.store(bytes);
  }
  bool lose(std::span<const std::byte> head, Error why) override {
    const std::lock_guard lock(mutex_);
    if (options_.full == TraceFull::kBlock && !is_ring()) fail(std::move(why));
    return lose(head);
  }
  Status dump() override;
  Result<RingSnapshot> snapshot() override {
    return is_ring() ? write_ring(true) : SegmentWriter::snapshot();
  }
  void dump_in_handler() noexcept override {
    is_frozen_.store(true);
    if (ring_files_) ring_files_->write_in_handler();
  }
  void stop_waiting() override {
    const Lock lock(mutex_);
    may_wait_ = false;
    room_.notify_all();
  }
  Status close() override;
  Status fault() const override {
    const std::lock_guard lock(mutex_);
    return fault_;
  }
  uint64_t num_lost() const override { return num_lost_.load(std::memory_order_relaxed); }
  uint64_t segment_number() const override {
    const std::lock_guard lock(mutex_);
    return current_.load(std::memory_order_relaxed)->header().number;
  }

 private:
  bool is_ring() const { return options_.level == TraceLevel::kRing; }
  // The append path.
  void append_sync(SegmentBuffer* buffer);
  void hand_over(SegmentBuffer* buffer, uint64_t used) {
    const Lock lock(mutex_);
    hand_over_locked(buffer, used);
  }
  void hand_over_locked(SegmentBuffer* buffer, uint64_t used);
  bool make_room(std::span<const std::byte> head, TraceFull full);
  void install_next();
  void write_gaps(SegmentBuffer* buffer);
  bool lose(std::span<const std::byte> head);
  void fail(Error error);
  // The background thread.
  void serve();
  Status prepare(SegmentBuffer* buffer);
  void prepare_next(Lock& lock);
  bool has_free() const;
  SegmentBuffer* take_free();
  void seal_next(Lock& lock);
  Status seal(SegmentBuffer* buffer);
  void sync_current(Lock& lock);
  bool wait_until_sealed(Lock& lock);
  void end_current();  // call with mutex_ held
  void stop();
  std::vector<SegmentBuffer*> all_kept(Lock& lock);
  Result<RingSnapshot> write_ring(bool is_snapshot);

  // Constant after start().
  SegmentWriterOptions options_;
  CatalogPart catalog_;
  BlobLedger blobs_;
  uint64_t capacity_ = 0;
  std::vector<std::unique_ptr<SegmentBuffer>> buffers_;
  std::unique_ptr<SealedSegments> sealed_;
  std::unique_ptr<RingFiles> ring_files_;  // for kRing
  std::mutex dump_mutex_;                  // held during a dump; locked before mutex_

  alignas(64) std::atomic<SegmentBuffer*> current_ = nullptr;
  std::atomic<uint64_t> num_lost_ = 0;
  std::atomic<uint64_t> pinned_from_ = UINT64_MAX;  // first segment of kept_ that is being dumped
  std::atomic<bool> is_frozen_ = false;  // the process is dying: the ring keeps everything

  mutable std::mutex mutex_;
  std::condition_variable room_;     // a segment became current, or the trace failed
  std::condition_variable wake_;     // work for the background thread
  std::condition_variable settled_;  // a segment was sealed
  // Guarded by mutex_.
  std::deque<SegmentBuffer*> free_, ready_, kept_;  // kept_: the ring, oldest first
  // By number, because a thread can be preempted between filling a segment and handing it over.
  std::map<uint64_t, SegmentBuffer*> to_seal_;
  uint64_t next_to_seal_ = 1;
  SegmentBuffer* sealing_ = nullptr;  // is in none of these queues meanwhile
  GapLedger losses_;                  // by group, since the last gap frames
  Status fault_;
  std::optional<Error> prepare_fault_;
  Clock::time_point prepare_at_, sync_at_;
  bool is_failed_ = false, is_closing_ = false, is_closed_ = false, may_wait_ = true;
  uint64_t num_sealed_deliveries_ = 0;
  // Used only by the thread that prepares: start(), then the background thread.
  uint64_t next_number_ = 1, last_seed_ = 0;
  std::jthread thread_;
};

Status Writer::start() {
  capacity_ = (options_.segment_bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  ASSIGN_OR_RETURN(catalog_, catalog_part(options_.catalog));
  const uint64_t least = catalog_.bytes.size() + kFrameBytesMax + kSyncEveryBytes;
  if (capacity_ < least || capacity_ > kSegmentBytesMax)
    return error(Code::kInvalid, "segments of {} bytes; with this catalog they have {} to {}",
                 options_.segment_bytes, least, kSegmentBytesMax);
  if (!is_ring())
    RETURN_IF_ERROR(claim_trace_folder(options_.folder, options_.process, options_.incarnation));
  const size_t num_buffers =
      is_ring() ? std::max<size_t>(4, options_.ring_bytes / capacity_ + 2) : kFileBuffers;
  for (size_t i = 0; i < num_buffers; ++i) {
    buffers_.push_back(std::make_unique<SegmentBuffer>(capacity_));
    free_.push_back(buffers_.back().get());
  }
  if (is_ring())
    ring_files_ = std::make_unique<RingFiles>(options_.folder, options_.process,
                                              options_.incarnation, buffers_, blobs_);
  SegmentBuffer* first = take_free();
  RETURN_IF_ERROR(prepare(first));
  first->open();
  current_.store(first, std::memory_order_release);
  if (!is_ring())
    sealed_ = std::make_unique<SealedSegments>(
        SealedSegments::Options{.folder = options_.folder,
                                .process = options_.process,
                                .incarnation = options_.incarnation,
                                .bytes_max = options_.trace_bytes_max,
                                .packs = options_.packs,
                                .keep_from = options_.keep_from,
                                .blobs = &blobs_});
  sync_at_ = deadline_after(options_.sync_every);
  thread_ = std::jthread([this] { serve(); });
  return ok();
}

bool Writer::append(std::span<std::byte> head, std::span<const std::byte> tail) {
  const size_t size = head.size() + tail.size();
  CHECK(head.size() >= sizeof(TraceFrameHeader), "a trace frame without its header");
  if (size > kFrameBytesMax) [[unlikely]] {
    const std::lock_guard lock(mutex_);
    return lose(head);
  }
  const uint64_t padded = aligned_to_frames(size);
  while (true) {
    SegmentBuffer* buffer = current_.load(std::memory_order_acquire);
    const uint64_t at = buffer->reserve(padded);
    if (buffer->fits(at, padded)) [[likely]] {
      buffer->write(at, head, tail);
      if ((at ^ (at + padded)) >= kSyncEveryBytes) append_sync(buffer);
      return true;
    }
    if (at <= capacity_) hand_over(buffer, at);
    if (!make_room(head, options_.full)) return false;
  }
}

void Writer::append_sync(SegmentBuffer* buffer) {
  SyncFrame frame{.header = frame_head(TraceFrameKind::kSync), .offset = 0};
  const uint64_t at = buffer->reserve(sizeof(frame));
  if (buffer->fits(at, sizeof(frame))) {
    frame.offset = at;
    buffer->write(at, bytes_of(frame), {});
  } else if (at <= capacity_) {
    hand_over(buffer, at);
  }
}

void Writer::hand_over_locked(SegmentBuffer* buffer, uint64_t used) {
  buffer->set_used(used);
  to_seal_.emplace(buffer->header().number, buffer);
  wake_.notify_one();
}

bool Writer::make_room(std::span<const std::byte> head, TraceFull full) {
  const auto deadline = deadline_after(options_.block_max);
  Lock lock(mutex_);
  while (true) {
    if (is_failed_) return lose(head);
    if (!current_.load(std::memory_order_relaxed)->is_full()) return true;
    if (!ready_.empty()) {
      install_next();
      return true;
    }
    if (full == TraceFull::kGap) return lose(head);
    const bool is_over = (!may_wait_ && prepare_fault_) ||
                         (room_.wait_until(lock, deadline) == std::cv_status::timeout &&
                          ready_.empty() && current_.load(std::memory_order_relaxed)->is_full());
    if (is_over)
      fail(prepare_fault_ ? *prepare_fault_
                          : error(Code::kDeadline, "no room in the trace for {}",
                                  to_string(options_.block_max)));
  }
}

void Writer::install_next() {
  SegmentBuffer* next = ready_.front();
  ready_.pop_front();
  next->open();
  write_gaps(next);
  current_.store(next, std::memory_order_release);
  room_.notify_all();
  wake_.notify_one();
}

// `buffer` is not current yet, so frames that are lost later come after its gap frame.
void Writer::write_gaps(SegmentBuffer* buffer) {
  for (GapFrame& gap : losses_.take()) {
    const uint64_t at = buffer->reserve(sizeof(gap));
    CHECK(buffer->fits(at, sizeof(gap)), "a segment holds a gap for every group");
    buffer->write(at, bytes_of(gap), {});
  }
}

bool Writer::lose(std::span<const std::byte> head) {
  num_lost_.fetch_add(1, std::memory_order_relaxed);
  losses_.lose(head);
  return false;
}

void Writer::fail(Error error) {
  if (is_failed_) return;
  is_failed_ = true;
  fault_ = std::move(error).while_doing("the trace is no longer written");
  // A frame was or will be lost; a later frame would leave a hole before it.
  end_current();
  room_.notify_all();
  settled_.notify_all();
}

void Writer::serve() {
  Lock lock(mutex_);
  while (true) {
    const auto now = Clock::now();
    const bool wants_segment = ready_.size() < kReadySegments && !is_closing_ && !is_failed_;
    const bool may_prepare = wants_segment && now >= prepare_at_ && has_free();
    const bool may_seal = !to_seal_.empty() && to_seal_.begin()->first == next_to_seal_;
    if (may_prepare && (ready_.empty() || !may_seal)) {
      prepare_next(lock);
    } else if (may_seal) {
      seal_next(lock);
    } else if (is_closing_) {
      return;
    } else if (options_.level == TraceLevel::kPower && now >= sync_at_) {
      sync_current(lock);
    } else {
      auto until = deadline_after(Duration::seconds(1));
      if (options_.level == TraceLevel::kPower) until = std::min(until, sync_at_);
      if (wants_segment && prepare_at_ > now) until = std::min(until, prepare_at_);
      wake_.wait_until(lock, until);
    }
  }
}

bool Writer::has_free() const {
  if (!free_.empty()) return true;
  return !kept_.empty() && kept_.front()->header().number < pinned_from_ && !is_frozen_.load();
}

SegmentBuffer* Writer::take_free() {
  std::deque<SegmentBuffer*>& from = free_.empty() ? kept_ : free_;
  SegmentBuffer* buffer = from.front();
  if (&from == &kept_) ring_files_->forget(buffer->header().number);
  from.pop_front();
  return buffer;
}

Status Writer::prepare(SegmentBuffer* buffer) {
  const auto file =
      segment_path(options_.folder, options_.process, options_.incarnation, next_number_);
  RETURN_IF_ERROR(is_ring() ? buffer->map_memory() : buffer->map_file(file));
  SegmentHeader header{};
  header.run_id = options_.run_id;
  header.process = options_.process_index;
  header.incarnation = options_.incarnation;
  header.number = next_number_;
  const uint64_t start = (uint64_t{options_.process_index} << 32) | options_.incarnation;
  header.seed = mix(mix(options_.run_id, start), next_number_);
  header.previous_seed = last_seed_;
  buffer->begin(header, catalog_);
  if (!is_ring()) RETURN_IF_ERROR(buffer->publish(file));
  if (options_.level == TraceLevel::kPower) {
    RETURN_IF_ERROR(buffer->sync());
    RETURN_IF_ERROR(system_files().sync(options_.folder));
  }
  last_seed_ = header.seed;
  ++next_number_;
  return ok();
}

void Writer::prepare_next(Lock& lock) {
  SegmentBuffer* buffer = take_free();
  lock.unlock();
  Status prepared = prepare(buffer);
  lock.lock();
  if (prepared.ok()) {
    prepare_fault_.reset();
    ready_.push_back(buffer);
    room_.notify_all();
    return;
  }
  // A full disk may have free space again soon, by retirement or because a person deleted files.
  buffer->release(true);
  free_.push_back(buffer);
  prepare_fault_ = std::move(prepared).error();
  if (prepare_fault_->code() != Code::kExhausted) fail(*prepare_fault_);
  if (!may_wait_) room_.notify_all();
  prepare_at_ = deadline_after(kPrepareAgain);
}

void Writer::seal_next(Lock& lock) {
  SegmentBuffer* buffer = to_seal_.extract(to_seal_.begin()).mapped();
  ++next_to_seal_;
  sealing_ = buffer;
  lock.unlock();
  Status sealed = seal(buffer);
  lock.lock();
  sealing_ = nullptr;
  if (!sealed.ok()) {
    fail(std::move(sealed).error());
  } else {
    num_sealed_deliveries_ += buffer->num_deliveries();
    (is_ring() ? kept_ : free_).push_back(buffer);
  }
  settled_.notify_all();
}

Status Writer::seal(SegmentBuffer* buffer) {
  const auto deadline = deadline_after(options_.block_max);
  while (!buffer->is_written_to(buffer->used())) {
    // A thread was preempted while it copied; the mapping is kept for it.
    if (Clock::now() > deadline)
      return error(Code::kDeadline, "a frame of segment {} was not finished for {}",
                   buffer->header().number, to_string(options_.block_max));
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (is_ring()) blobs_.count(buffer->header().number, buffer->bytes());
  if (is_ring()) return ok();
  if (options_.level == TraceLevel::kPower) RETURN_IF_ERROR(buffer->sync());
  const uint64_t number = buffer->header().number, num_bytes = buffer->used();
  RETURN_IF_ERROR(buffer->seal_file());
  sealed_->add(number, num_bytes);
  return ok();
}

void Writer::sync_current(Lock& lock) {
  // Only this thread closes a buffer's file, so the file stays open meanwhile.
  SegmentBuffer* buffer = current_.load(std::memory_order_relaxed);
  lock.unlock();
  Status synced = buffer->sync();
  lock.lock();
  if (!synced.ok()) fail(std::move(synced).error());
  sync_at_ = deadline_after(options_.sync_every);
}

bool Writer::wait_until_sealed(Lock& lock) {
  return settled_.wait_until(lock, deadline_after(options_.block_max), [this] {
    return (to_seal_.empty() && sealing_ == nullptr) || is_failed_;
  }) && !is_failed_;
}

void Writer::end_current() {
  SegmentBuffer* buffer = current_.load(std::memory_order_acquire);
  const uint64_t at = buffer->reserve(capacity_ + kFrameAlignment);
  if (at <= capacity_) hand_over_locked(buffer, at);
}

Status Writer::dump() {
  if (!is_ring()) return sync_segments(options_.folder, options_.process, options_.incarnation);
  const auto written = write_ring(false);
  return written.ok() ? ok() : Status(written.error());
}

/// Every buffer that is not empty, oldest first.
std::vector<SegmentBuffer*> Writer::all_kept(Lock& lock) {
  for (const auto deadline = deadline_after(options_.block_max);;) {
    std::vector<SegmentBuffer*> all(kept_.begin(), kept_.end());
    for (const auto& [number, buffer] : to_seal_) all.push_back(buffer);
    for (SegmentBuffer* one : {sealing_, current_.load(std::memory_order_relaxed)})
      if (one != nullptr && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    const size_t num_all = all.size();
    all = newest_without_gap(std::move(all));
    if (all.size() == num_all || Clock::now() > deadline) return all;
    // One buffer is full, and the thread that filled it has not handed it over yet.
    room_.wait_for(lock, std::chrono::microseconds(50));
  }
}

Result<RingSnapshot> Writer::write_ring(bool is_snapshot) {
  const std::lock_guard dumping(dump_mutex_);
  Lock lock(mutex_);
  const auto kept = all_kept(lock);
  pinned_from_ = kept.front()->header().number;
  lock.unlock();
  auto written = ring_files_->write(kept, is_snapshot, options_.block_max, [this](uint64_t number) {
    pinned_from_ = number + 1;
    wake_.notify_all();
  });
  pinned_from_ = UINT64_MAX;
  wake_.notify_all();
  return written;
}

Status Writer::close() {
  Lock lock(mutex_);
  if (is_closed_) return fault_;
  is_closed_ = true;
  if (wait_until_sealed(lock)) {
    SegmentBuffer* buffer = current_.load(std::memory_order_relaxed);
    EndFrame end{.header = frame_head(TraceFrameKind::kEnd),
                 .num_deliveries = num_sealed_deliveries_,
                 .num_lost = num_lost()};
    if (!buffer->is_full()) {
      buffer->is_written_to(UINT64_MAX);
      end.num_deliveries += buffer->num_deliveries();
    }
    // Waits for space for the end frame, even if the trace may have gaps.
    options_.full = TraceFull::kBlock;
    auto gaps = buffer->is_full() ? std::vector<GapFrame>() : losses_.take();
    lock.unlock();
    for (GapFrame& gap : gaps) append(bytes_of(gap), {});
    append(bytes_of(end), {});
    lock.lock();
    end_current();
    wait_until_sealed(lock);
  }
  lock.unlock();
  stop();
  if (sealed_) sealed_->finish(kPackMax);
  sealed_.reset();
  return fault();
}

void Writer::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (SegmentBuffer* buffer : std::exchange(ready_, {})) buffer->release(true);
}

}  // namespace

Result<RingSnapshot> SegmentWriter::snapshot() {
  return error(Code::kInvalid, "only a flight recorder (trace.level = \"ring\") has snapshots");
}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::open(SegmentWriterOptions options) {
  auto writer = std::make_unique<Writer>(std::move(options));
  RETURN_IF_ERROR(writer->start());
  return std::unique_ptr<SegmentWriter>(std::move(writer));
}

}  // namespace primerl
