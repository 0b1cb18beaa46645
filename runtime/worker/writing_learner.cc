#include "runtime/worker/writing_learner.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/base/files.h"
#include "runtime/worker/writer_pace.h"

namespace primerl {
namespace {

constexpr int kWriterNice = 19;  // the lowest priority: 1.5 % of a core that others want too

/// Counts the bytes of one checkpoint on the thread that writes it, and pauses after each piece
/// (writer_pace.h).
class PacedBytes {
 public:
  PacedBytes(std::atomic<uint64_t>& bytes, const CoreWaits& waits,
             const std::atomic<bool>& is_computing)
      : waits_(waits), is_computing_(is_computing), counted_(bytes, [this] { after_piece(); }) {}

 private:
  using Clock = std::chrono::steady_clock;

  void after_piece() {
    const auto waited = waits_.read();
    const Duration lasted = Duration::nanoseconds(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since_).count());
    if (waited && waited_) {
      const Duration pause = pace_.pause_after(lasted, *waited - *waited_, is_computing_);
      if (pause > Duration())
        std::this_thread::sleep_for(std::chrono::nanoseconds(pause.to_nanoseconds()));
    }
    waited_ = waits_.read();
    since_ = Clock::now();
  }

  const CoreWaits& waits_;
  const std::atomic<bool>& is_computing_;
  WriterPace pace_;
  std::optional<Duration> waited_ = waits_.read();
  Clock::time_point since_ = Clock::now();
  CountedBytes counted_;
};

/// Sets a flag while it exists.
class Computing {
 public:
  explicit Computing(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
  ~Computing() { flag_ = false; }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  std::atomic<bool>& flag_;
};

class WritingLearner final : public Learner {
 public:
  WritingLearner(std::shared_ptr<Learner> learner, GradientsDiscarded discarded,
                 std::atomic<uint64_t>* bytes)
      : learner_(std::move(learner)), discarded_(std::move(discarded)), bytes_(bytes) {}
  ~WritingLearner() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (writer_.joinable()) writer_.join();
  }

  Status begin_save(LearnerSave save) override;
  std::optional<Status> end_of_save(TenantSlot tenant, Time now) override;
  void set_wake(std::function<void()> wake) override {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    const Computing computing(is_computing_);
    return learner_->step(batch, stop);
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override {
    return learner_->snapshot(tenant, version);
  }
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override {
    return learner_->score(tenant, tokens);
  }
  Result<AnswerLoss> evaluate(const TrainBatch& batch) override {
    return learner_->evaluate(batch);
  }
  Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) override {
    return learner_->capture(tenant);
  }
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override {
    return learner_->save(tenant, folder);
  }
  /// Waits for the tenant's save: it may be the folder. In a resumed run the record says that it
  /// has ended while it is being written again.
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override {
    wait_for_save(tenant);
    const Watch end(*this, tenant);
    return learner_->load(tenant, folder);
  }
  Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                      const std::filesystem::path& others) override {
    wait_for_save(tenant);
    const Watch end(*this, tenant);
    return learner_->load_weights(tenant, folder, others);
  }
  std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                 uint64_t number,
                                                 const StopRequested& stop) override {
    const Computing computing(is_computing_);
    return learner_->step_queued(std::move(batch), number, stop);
  }
  Result<LossResult> accumulate(const LossBatch& batch, const StopRequested& stop) override {
    const Computing computing(is_computing_);
    const Watch end(*this, batch.tenant);
    return learner_->accumulate(batch, stop);
  }
  std::optional<Result<LossResult>> accumulate_queued(std::shared_ptr<const LossBatch> batch,
                                                      uint64_t work_call,
                                                      const StopRequested& stop) override {
    const Computing computing(is_computing_);
    const Watch end(*this, batch->tenant);
    return learner_->accumulate_queued(std::move(batch), work_call, stop);
  }
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override {
    const bool was_open = learner_->has_open_gradients(tenant);
    auto report = learner_->apply(tenant, adam);
    const bool has_stepped = report.ok() && !report->skipped;
    if (was_open && !has_stepped) tell(tenant);
    return report;
  }
  void discard(TenantSlot tenant) override {
    const Watch end(*this, tenant);
    learner_->discard(tenant);
  }
  bool has_open_gradients(TenantSlot tenant) const override {
    return learner_->has_open_gradients(tenant);
  }
  Status begin_tenant(const AdapterTraining& tenant) override {
    return learner_->begin_tenant(tenant);
  }
  void end_tenant(TenantSlot tenant) override;
  void set_share(TenantSlot tenant, double share) override { learner_->set_share(tenant, share); }
  void leave_queue(TenantSlot tenant) override {
    const Watch end(*this, tenant);
    learner_->leave_queue(tenant);
  }
  SampleLimits limits() const override { return learner_->limits(); }
  Status step() override { return learner_->step(); }
  bool has_work() const override { return learner_->has_work(); }
  Duration take_cost() override { return learner_->take_cost(); }
  std::string describe() const override { return learner_->describe(); }
  Blob save_state() const override { return learner_->save_state(); }
  Status restore_state(const Blob& state) override { return learner_->restore_state(state); }

 private:
  struct Writing {
    LearnerSave save;
    std::shared_ptr<const LearnerImage> image;
  };

  /// The state of a tenant's newest save.
  struct Ending {
    SaveLimit limit;
    std::optional<Status> end;  // empty: not written yet
  };

  /// Until the newest save of the tenant, if there is one, has ended.
  void wait_for_save(TenantSlot tenant) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      const auto earlier = ends_.find(tenant);
      return earlier == ends_.end() || earlier->second.end.has_value();
    });
  }
  /// Tells that the tenant's gradients were discarded, if none are open any more.
  void tell(TenantSlot tenant) {
    if (discarded_ != nullptr && !learner_->has_open_gradients(tenant)) discarded_(tenant);
  }
  /// Lives as long as a call that takes no training step, and then tells what it discarded.
  class Watch {
   public:
    Watch(WritingLearner& learner, TenantSlot tenant)
        : learner_(learner),
          tenant_(tenant),
          was_open_(learner.learner_->has_open_gradients(tenant)) {}
    ~Watch() {
      if (was_open_) learner_.tell(tenant_);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    WritingLearner& learner_;
    const TenantSlot tenant_;
    const bool was_open_;
  };

  void write();
  static Status written(const Writing& writing);

  const std::shared_ptr<Learner> learner_;
  const GradientsDiscarded discarded_;
  std::atomic<uint64_t>* const bytes_;  // may be null
  std::atomic<uint64_t> own_bytes_ = 0;
  std::atomic<bool> is_computing_ = false;  // a step or a part of one runs

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Writing> queue_;          // at most one per tenant
  std::map<TenantSlot, Ending> ends_;  // until end_of_save() has returned the end
  std::function<void()> wake_;
  bool is_over_ = false;

  std::thread writer_;
};

Status WritingLearner::begin_save(LearnerSave save) {
  const TenantSlot tenant = save.tenant;
  wait_for_save(tenant);
  {
    const std::lock_guard lock(mutex_);
    ends_.erase(tenant);
  }
  ASSIGN_OR_RETURN(auto image, learner_->capture(tenant));
  if (image == nullptr)
    return error(Code::kInternal, "a learner that makes no copy cannot be saved while it trains");
  {
    const std::lock_guard lock(mutex_);
    ends_.insert_or_assign(tenant, Ending{SaveLimit(save.lasts_max), std::nullopt});
    queue_.push_back({std::move(save), std::move(image)});
  }
  changed_.notify_all();
  if (!writer_.joinable()) writer_ = std::thread([this] { write(); });
  return ok();
}

/// Waits for the copy that is being written. One that waits is not written.
void WritingLearner::end_tenant(TenantSlot tenant) {
  {
    std::unique_lock lock(mutex_);
    const auto waiting =
        std::ranges::find(queue_, tenant, [](const Writing& one) { return one.save.tenant; });
    if (waiting != queue_.end()) {
      std::error_code ignored;  // otherwise the next checkpoint removes it
      std::filesystem::remove_all(waiting->save.folder, ignored);
      queue_.erase(waiting);
      ends_.erase(tenant);
    }
    changed_.wait(lock, [&] {
      const auto written = ends_.find(tenant);
      return written == ends_.end() || written->second.end.has_value();
    });
    ends_.erase(tenant);
  }
  learner_->end_tenant(tenant);
}

std::optional<Status> WritingLearner::end_of_save(TenantSlot tenant, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = ends_.find(tenant);
  if (found == ends_.end())
    return error(Code::kInternal, "the learner was not asked to save tenant {}", tenant);
  std::optional<Status> end = found->second.end;
  if (!end) return found->second.limit.look(now);
  ends_.erase(found);
  return end;
}

Status WritingLearner::written(const Writing& writing) {
  try {
    const Status files = writing.image->write(writing.save.folder);
    if (files.ok()) return writing.save.commit();
    std::error_code ignored;  // otherwise the next checkpoint removes it
    std::filesystem::remove_all(writing.save.folder, ignored);
    return files;
  } catch (const std::exception& exception) {
    return error(Code::kInternal, "an exception left the writing of a checkpoint: {}",
                 exception.what());
  }
}

void WritingLearner::write() {
  // The step gets the cores. Without this the writer delays it by its whole CPU time if the compute
  // threads use all cores. An error changes nothing but that.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kWriterNice);
  const CoreWaits waits;
  while (true) {
    Writing next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || is_over_; });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    Status end;
    {
      const PacedBytes paced(bytes_ != nullptr ? *bytes_ : own_bytes_, waits, is_computing_);
      end = written(next);
    }
    next.image.reset();  // frees the copy before the next one is made
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = ends_.find(next.save.tenant); found != ends_.end())
        found->second.end = std::move(end);
      wake = wake_;
    }
    changed_.notify_all();
    if (wake != nullptr) wake();
  }
}

}  // namespace

std::shared_ptr<Learner> make_writing_learner(std::shared_ptr<Learner> learner,
                                              GradientsDiscarded discarded,
                                              std::atomic<uint64_t>* bytes) {
  return std::make_shared<WritingLearner>(std::move(learner), std::move(discarded), bytes);
}

ResourceFactory writing_factory(ResourceFactory make, GradientsDiscarded discarded,
                                std::atomic<uint64_t>* bytes) {
  return [make = std::move(make), discarded = std::move(discarded), bytes](
             const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    if (auto learner = std::dynamic_pointer_cast<Learner>(*made))
      return std::shared_ptr<Resource>(make_writing_learner(std::move(learner), discarded, bytes));
    return made;
  };
}

}  // namespace primerl
