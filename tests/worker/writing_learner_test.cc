// Checkpoints are written by a thread of their own while the learner trains.
#include "runtime/worker/writing_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "kernels/scripted/scripted_learner.h"
#include "runtime/worker/writer_pace.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TenantSlot kOne(0), kTwo(1);

int priority_of_this_thread() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); }

/// What happened, in order; threads wait for each other by it.
class Story {
 public:
  void note(const std::string& what) {
    {
      const std::lock_guard lock(mutex_);
      lines_.push_back(what);
    }
    changed_.notify_all();
  }
  void wait_for(const std::string& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::ranges::count(lines_, what) > 0; });
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  std::atomic<int> writing_priority = 0;  // of the thread that writes

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// A learner whose copy says its number of steps, and is written when the test lets it.
class CopyingLearner final : public Learner {
 public:
  explicit CopyingLearner(Story& story) : story_(story) {}

  using Learner::step;
  Result<TrainReport> step(const TrainBatch&, const StopRequested&) override {
    ++steps_;
    return TrainReport();
  }
  Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) override {
    if (tenant == TenantSlot(9)) return error(Code::kExhausted, "no memory for a copy");
    story_.note(fmt::format("copied {}", tenant));
    return std::shared_ptr<const LearnerImage>(
        std::make_shared<Image>(story_, fmt::format("tenant {} after {} steps", tenant, steps_)));
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot, PolicyVersion) override {
    return error(Code::kInternal, "not asked");
  }
  Result<std::vector<float>> score(TenantSlot, const std::vector<int32_t>&) override {
    return std::vector<float>();
  }
  Status save(TenantSlot, const std::filesystem::path&) override { return ok(); }
  Status load(TenantSlot, const std::filesystem::path&) override { return ok(); }
  void end_tenant(TenantSlot tenant) override { story_.note(fmt::format("ended {}", tenant)); }
  SampleLimits limits() const override { return {}; }

 private:
  class Image final : public LearnerImage {
   public:
    Image(Story& story, std::string what) : story_(story), what_(std::move(what)) {}
    Status write(const std::filesystem::path& folder) const override {
      story_.writing_priority = priority_of_this_thread();
      story_.note("begins " + folder.string());
      story_.wait_for("may write " + folder.string());
      if (folder == "/nowhere/full") return error(Code::kIo, "no space left");
      if (folder == "broken") throw std::runtime_error("out of luck");
      story_.note("wrote " + what_);
      return ok();
    }

   private:
    Story& story_;
    const std::string what_;
  };

  Story& story_;
  int steps_ = 0;
};

class AWritingLearner : public ::testing::Test {
 protected:
  void SetUp() override {
    learner = make_writing_learner(std::make_shared<CopyingLearner>(story));
    learner->set_wake([this] { story.note("woken"); });
  }
  LearnerSave to(const std::string& folder, TenantSlot tenant = kOne) {
    return {tenant, folder, Time(), [this, folder] {
              story.note("committed " + folder);
              return ok();
            }};
  }
  void let(const std::string& folder) { story.note("may write " + folder); }
  /// Waits until the writer has noted the end.
  Status end_of(TenantSlot tenant) {
    while (true)
      if (auto ended = learner->end_of_save(tenant, Time())) return *ended;
  }

  Story story;
  std::shared_ptr<Learner> learner;
};

TEST_F(AWritingLearner, WritesTheCopyWhileItMakesSteps) {
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  story.wait_for("begins a");
  ASSERT_TRUE(learner->step({}, nullptr).ok());
  EXPECT_FALSE(learner->end_of_save(kOne, Time()).has_value());
  let("a");
  story.wait_for("woken");
  const auto ended = learner->end_of_save(kOne, Time());
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok());
  EXPECT_THAT(story.lines(), ElementsAre("copied 0", "begins a", "may write a",
                                         "wrote tenant 0 after 0 steps", "committed a", "woken"));
  EXPECT_THAT(learner->end_of_save(kOne, Time())->error().text(), HasSubstr("not asked to save"));
}

TEST_F(AWritingLearner, WritesWithTheLowestPriorityWhichTheStepDoesNotGet) {
  const int before = priority_of_this_thread();
  let("a");
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  EXPECT_TRUE(end_of(kOne).ok());
  EXPECT_EQ(story.writing_priority, 19);
  EXPECT_EQ(priority_of_this_thread(), before);
}

TEST(AWritingLearnerOfAClient, HasTheHalvesAndSavesNoOpenGradients) {
  const auto learner = make_writing_learner(make_scripted_learner({}).value());
  LossBatch batch;
  batch.tenant = kOne;
  batch.loss = tinker_loss("cross_entropy", {}).value();
  batch.data = {{.tokens = {1, 2, 3}, .targets = {2, 3, 4}}};
  ASSERT_TRUE(learner->accumulate(batch, nullptr).ok());
  EXPECT_TRUE(learner->has_open_gradients(kOne));
  const Status refused = learner->begin_save({kOne, "nowhere", Time(), [] { return ok(); }});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("open gradients of 1 accumulate"));
  EXPECT_TRUE(learner->apply(kOne, {}).ok());
  const auto shared = std::make_shared<const LossBatch>(batch);
  EXPECT_FALSE(learner->accumulate_queued(shared, 1, nullptr));
  EXPECT_TRUE(learner->accumulate_queued(shared, 2, nullptr)->ok());
  learner->discard(kOne);
  EXPECT_FALSE(learner->has_open_gradients(kOne));
}

TEST(AWritingLearnerOfAClient, TellsOfGradientsThatNoStepUses) {
  int num_told = 0;
  const auto learner =
      make_writing_learner(make_scripted_learner({}).value(), [&num_told](TenantSlot tenant) {
        EXPECT_EQ(tenant, kOne);
        ++num_told;
      });
  LossBatch batch;
  batch.tenant = kOne;
  batch.loss = tinker_loss("cross_entropy", {}).value();
  batch.data = {{.tokens = {1, 2, 3}, .targets = {2, 3, 4}}};
  learner->discard(kOne);
  EXPECT_EQ(num_told, 0) << "none were open";
  ASSERT_TRUE(learner->accumulate(batch, nullptr).ok());
  EXPECT_TRUE(learner->apply(kOne, {}).ok());
  EXPECT_EQ(num_told, 0) << "a step used them";
  ASSERT_TRUE(learner->accumulate(batch, nullptr).ok());
  learner->discard(kOne);
  EXPECT_EQ(num_told, 1);
  ASSERT_TRUE(learner->accumulate(batch, nullptr).ok());
  EXPECT_FALSE(learner->accumulate(batch, [] { return true; }).ok());
  EXPECT_FALSE(learner->has_open_gradients(kOne));
  EXPECT_EQ(num_told, 2) << "a call that is stopped discards all";
}

TEST(TheWriterOfALearner, CountsTheBytesThatItWrites) {
  const ScratchFolder scratch;
  std::atomic<uint64_t> bytes = 0;
  const auto learner = make_writing_learner(make_scripted_learner({}).value(), {}, &bytes);
  ASSERT_TRUE(learner->begin_save({kOne, scratch.path(), Time(), [] { return ok(); }}).ok());
  while (!learner->end_of_save(kOne, Time())) std::this_thread::yield();
  uint64_t written = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch.path()))
    if (entry.is_regular_file()) written += entry.file_size();
  EXPECT_GT(written, 0U);
  EXPECT_EQ(bytes, written);
}

TEST(WriterPace, PausesWhileAStepWantsTheCores) {
  const Duration piece = Duration::milliseconds(60), waits = Duration::milliseconds(59);
  WriterPace pace;
  EXPECT_EQ(pace.pause_after(piece, waits, true), Duration::milliseconds(180));
  EXPECT_EQ(pace.pause_after(piece, waits, false), Duration()) << "no step runs";
  EXPECT_EQ(pace.pause_after(piece, Duration::milliseconds(30), true), Duration())
      << "the disk is slow, or cores are idle";
  EXPECT_EQ(pace.pause_after(piece * 100, waits * 100, true), Duration::milliseconds(500));
}

TEST(WriterPace, ThePausesOfACheckpointHaveABound) {
  WriterPace pace;
  Duration sum;
  for (int i = 0; i < 10'000; ++i)
    sum += pace.pause_after(Duration::milliseconds(60), Duration::milliseconds(59), true);
  EXPECT_EQ(sum, kPausesMax);
}

TEST(CoreWaits, GrowOrAreNotKnown) {
  const CoreWaits waits;
  const auto first = waits.read();
  if (!first) GTEST_SKIP() << "the system does not count them";
  EXPECT_GE(*first, Duration());
  EXPECT_GE(*waits.read(), *first);
}

TEST_F(AWritingLearner, MakesNoSecondCopyOfATenantWhileOneIsWritten) {
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  story.wait_for("begins a");
  auto second = std::async(std::launch::async, [this] { return learner->begin_save(to("b")); });
  let("a");
  ASSERT_TRUE(second.get().ok());
  let("b");
  EXPECT_TRUE(end_of(kOne).ok());
  const auto lines = story.lines();
  const auto at = [&](const std::string& what) { return std::ranges::find(lines, what); };
  EXPECT_LT(at("committed a"), std::find(at("copied 0") + 1, lines.end(), "copied 0"));
}

TEST_F(AWritingLearner, WritesTheTenantsOneAfterTheOther) {
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  ASSERT_TRUE(learner->begin_save(to("b", kTwo)).ok());  // it does not wait for the other tenant
  let("b");
  story.wait_for("begins a");
  EXPECT_FALSE(learner->end_of_save(kTwo, Time()).has_value());
  let("a");
  EXPECT_TRUE(end_of(kTwo).ok());
  EXPECT_TRUE(end_of(kOne).ok());
  const auto lines = story.lines();
  const auto at = [&](const std::string& what) { return std::ranges::find(lines, what); };
  EXPECT_LT(at("committed a"), at("begins b"));
}

TEST_F(AWritingLearner, ATenantEndsAfterTheCopyThatIsBeingWritten) {
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  story.wait_for("begins a");
  auto ended = std::async(std::launch::async, [this] { learner->end_tenant(kOne); });
  let("a");
  ended.get();
  const auto lines = story.lines();
  const auto at = [&](const std::string& what) { return std::ranges::find(lines, what); };
  EXPECT_LT(at("committed a"), at("ended 0"));
  EXPECT_THAT(learner->end_of_save(kOne, Time())->error().text(), HasSubstr("not asked to save"));
  let("b");
  ASSERT_TRUE(learner->begin_save(to("b")).ok()) << "of the next tenant";
  EXPECT_TRUE(end_of(kOne).ok());
}

TEST_F(AWritingLearner, ACopyThatWaitsIsNotWrittenOnceItsTenantHasEnded) {
  const std::filesystem::path folder = new_scratch_folder() / "b";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  story.wait_for("begins a");
  ASSERT_TRUE(learner->begin_save(to(folder.string(), kTwo)).ok());
  learner->end_tenant(kTwo);
  EXPECT_FALSE(std::filesystem::exists(folder));
  let("a");
  EXPECT_TRUE(end_of(kOne).ok());
  let("c");
  ASSERT_TRUE(learner->begin_save(to("c")).ok());
  EXPECT_TRUE(end_of(kOne).ok());
  EXPECT_EQ(std::ranges::count(story.lines(), "begins " + folder.string()), 0);
}

TEST_F(AWritingLearner, AnswersWithTheErrorOfTheDisk) {
  let("/nowhere/full");
  ASSERT_TRUE(learner->begin_save(to("/nowhere/full")).ok());
  EXPECT_EQ(end_of(kOne).error().text(), "no space left");
  let("broken");
  ASSERT_TRUE(learner->begin_save(to("broken")).ok());
  EXPECT_THAT(end_of(kOne).error().text(), HasSubstr("out of luck"));
  EXPECT_EQ(std::ranges::count(story.lines(), "committed /nowhere/full"), 0);
  let("c");
  ASSERT_TRUE(learner->begin_save(to("c")).ok());
  EXPECT_TRUE(end_of(kOne).ok()) << "the writer continues";
}

// A resumed run begins a save again, long after the recorded request.
TEST_F(AWritingLearner, LimitsASaveFromTheFirstQuestionOn) {
  LearnerSave save = to("a");
  save.lasts_max = Duration::seconds(5);
  ASSERT_TRUE(learner->begin_save(std::move(save)).ok());
  const Time first = Time() + Duration::seconds(1000);
  EXPECT_FALSE(learner->end_of_save(kOne, first).has_value());
  EXPECT_FALSE(learner->end_of_save(kOne, first + Duration::nanoseconds(4'999'999'999)));
  const auto late = learner->end_of_save(kOne, first + Duration::seconds(5));
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->error().code(), Code::kDeadline);
  let("a");
}

TEST_F(AWritingLearner, BeginsNothingWithoutACopy) {
  const Status begun = learner->begin_save(to("a", TenantSlot(9)));
  EXPECT_EQ(begun.error().text(), "no memory for a copy");
  let("b");
  ASSERT_TRUE(learner->begin_save(to("b")).ok());
  EXPECT_TRUE(end_of(kOne).ok());
}

TEST_F(AWritingLearner, WritesWhatWasBegunBeforeItGoes) {
  ASSERT_TRUE(learner->begin_save(to("a")).ok());
  ASSERT_TRUE(learner->begin_save(to("b", kTwo)).ok());
  let("a");
  let("b");
  learner.reset();
  EXPECT_EQ(std::ranges::count(story.lines(), "committed a"), 1);
  EXPECT_EQ(std::ranges::count(story.lines(), "committed b"), 1);
}

}  // namespace
}  // namespace primerl::testing
