// The frames that a Recorder writes for a step: the message where it is sent, or where it is
// handled.
#include "runtime/trace/record/recorder.h"

#include <gmock/gmock.h>

#include "runtime/trace/read/stored_message.h"
#include "tests/store/scratch_folder.h"
#include "tests/trace/story.h"

namespace primerl::story {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The trainer of a story handles one group; its edge has the policy `record`.
struct OneGroup {
  explicit OneGroup(const std::string& record, size_t blob_bytes = 0, bool is_from_record = false,
                    std::optional<TraceFull> without_blobs = {}) {
    TraceCatalog catalog = story_catalog();
    catalog.links[kGroupLink].record = record;
    SegmentWriterOptions options;
    options.folder = folder.path() / "trace";
    options.catalog = catalog.to_json().dump();
    options.segment_bytes = kStorySegmentBytes;
    if (without_blobs) {
      options.full = *without_blobs;
      fs::create_directories(options.folder);
      write_text(options.folder / "blobs", "a file where the folder of blobs would be");
    }
    auto writer = SegmentWriter::open(options).value();
    Recorder recorder(catalog, *writer);
    Group group{.ordinal = 5, .version = PolicyVersion(2), .members = {}, .routing = {}};
    if (blob_bytes > 0) group.routing = Blob(std::vector<std::byte>(blob_bytes));
    Envelope message;
    message.payload = Payload::of(std::move(group));
    message.tenant = TenantSlot(0);
    message.incarnation = 3;
    message.sequence = 1;
    message.blob_bytes = blob_bytes;
    StepRecord step;
    step.group = GroupId(kTrainer);
    step.instance = InstanceId(kTrainer);
    step.step = 1;
    step.message = &message;
    step.link = LinkId(kGroupLink);
    step.is_from_record = is_from_record;
    recorder.on_start(step.group, Time());
    recorder.on_step(step);
    fault = writer->fault();
    EXPECT_EQ(writer->close().ok(), fault.ok());
    trace = open_trace(folder.path());
  }
  const ScratchFolder folder;
  Status fault;
  std::shared_ptr<const Trace> trace;
  const MessageKey key{LinkId(kGroupLink), 3, 1};
};

TEST(Recorder, KeepsAnInputWhereItIsHandled) {
  const OneGroup one("input");
  const auto stored = one.trace->payload(one.key);
  ASSERT_TRUE(stored.ok()) << stored.error().text();
  EXPECT_TRUE(stored->sender_group.is_none());  // the step that sent it is not known
  EXPECT_THAT(one.trace->stored_emissions(GroupId(kTrainer), 1), IsEmpty());
  EXPECT_NE(one.trace->step(GroupId(kTrainer), 1)->flags & kPayloadStored, 0);
  const auto type = one.trace->catalog().types[stored->type];
  EXPECT_TRUE(check_payload(type, *stored).ok());
  EXPECT_EQ(payload_json(type, *stored)->get_int("ordinal").value(), 5);
}

TEST(Recorder, LeavesInputsWithLargeBlobsOut) {
  EXPECT_TRUE(OneGroup("input", 65536).trace->has_payload({LinkId(kGroupLink), 3, 1}));
  const OneGroup one("input", 65537);
  EXPECT_FALSE(one.trace->has_payload(one.key));
  EXPECT_EQ(one.trace->step(GroupId(kTrainer), 1)->flags & kPayloadStored, 0);
}

TEST(Recorder, KeepsNothingTwiceOfWhatItsSenderStores) {
  const OneGroup sent("payload");
  EXPECT_FALSE(sent.trace->has_payload(sent.key));  // here it was only handled
  EXPECT_FALSE(OneGroup("header").trace->has_payload(sent.key));
}

TEST(Recorder, KeepsWhatASenderOfAnOlderRecordHadStored) {
  const OneGroup one("payload", 0, true);
  EXPECT_TRUE(one.trace->has_payload(one.key));
}

// A store of blobs that failed once dropped the payloads silently, and the trace still counted as
// sound.
TEST(Recorder, FailsWithABlobThatCannotBeStored) {
  const OneGroup one("payload", 1 << 20, true, TraceFull::kBlock);
  ASSERT_FALSE(one.fault.ok());
  EXPECT_THAT(one.fault.error().text(),
              AllOf(HasSubstr("the trace is no longer written"), HasSubstr("blobs")));
}

TEST(Recorder, LeavesAGapWhereABlobCannotBeStoredWhenTheGraphSaysSo) {
  const OneGroup one("payload", 1 << 20, true, TraceFull::kGap);
  EXPECT_TRUE(one.fault.ok());
  EXPECT_FALSE(one.trace->is_complete());
  ASSERT_THAT(one.trace->faults(), SizeIs(1));
  EXPECT_EQ(one.trace->faults()[0].kind, TraceFault::Kind::kGap);
  EXPECT_EQ(one.trace->faults()[0].group, GroupId(kTrainer));
  EXPECT_TRUE(one.trace->step(GroupId(kTrainer), 1).has_value());
}

}  // namespace
}  // namespace primerl::story
