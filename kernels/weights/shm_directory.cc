#include "kernels/weights/shm_directory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "graph/base/crc32c.h"
#include "graph/base/random.h"
#include "graph/base/real_clock.h"

namespace primerl {
namespace {

constexpr uint64_t kDirectoryMagic = 0x3268'7477'6c72'6d70;  // "pmrlwth2"
// Lock numbers. kOffered and kOpen are the first of kShmPlacesMax numbers each.
constexpr uint8_t kPresence = 0, kPublisher = 1, kOffered = 64, kOpen = 128;
static_assert(kOffered + kShmPlacesMax <= kOpen && kOpen + kShmPlacesMax <= 256);
constexpr size_t kFolderBytesMax = 4096;
constexpr size_t kHeadWords = 3;  // table number, entry count, checksum of the other used words
constexpr size_t kEntryWords = 5;
constexpr size_t kTableWords = kHeadWords + kShmSlotsMax * kEntryWords;
constexpr int kReadsMax = 1000;
/// The processes of a killed control plane end a moment after it, and a resumed run may be faster.
constexpr Duration kTakeoverMax = Duration::seconds(3);
constexpr size_t kRefusalBytesMax = 1024;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free, "shared memory needs atomics without a lock");

/// The start of the directory's segment. New memory is zero: table number 0, no entries.
struct Page {
  Word magic;  // written last by the first publisher
  Word turn;
  std::array<std::array<Word, kTableWords>, 2> tables;
  std::array<char, kFolderBytesMax> run_folder;  // informative; not read while it is written
};

Page& page_of(const ShmSegment& segment) {
  return *reinterpret_cast<Page*>(segment.writable().data());
}

const Page& readable_page_of(const ShmSegment& segment) {
  return *reinterpret_cast<const Page*>(segment.bytes().data());
}

bool has_page(const ShmSegment& segment) {
  return segment.bytes().size() >= sizeof(Page) &&
         readable_page_of(segment).magic.load(std::memory_order_acquire) == kDirectoryMagic;
}

using Words = std::vector<uint64_t>;  // only the used words

size_t num_words(uint64_t num_slots) { return kHeadWords + num_slots * kEntryWords; }

uint64_t check_of(const Words& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return crc32c(bytes.subspan(kHeadWords * sizeof(uint64_t)),
                crc32c(bytes.first((kHeadWords - 1) * sizeof(uint64_t))));
}

Words to_words(const ShmTable& table) {
  Words words = {table.turn, table.slots.size(), 0};
  for (const auto& slot : table.slots) {
    const WeightsKey key = slot.version.key;
    words.push_back(uint64_t{key.tenant.value} << 32 | key.adapter.value);
    words.push_back(static_cast<uint64_t>(slot.version.version.value));
    words.push_back(slot.serial);
    words.push_back(slot.publication);
    words.push_back(slot.num_bytes);
  }
  words[kHeadWords - 1] = check_of(words);
  return words;
}

ShmTable to_table(const Words& words) {
  ShmTable table;
  table.turn = words[0];
  for (size_t at = kHeadWords; at < words.size(); at += kEntryWords) {
    const WeightsKey key{TenantSlot(static_cast<uint32_t>(words[at] >> 32)),
                         AdapterId(static_cast<uint32_t>(words[at]))};
    table.slots.push_back({{key, PolicyVersion(static_cast<int64_t>(words[at + 1]))},
                           words[at + 2],
                           words[at + 3],
                           words[at + 4]});
  }
  return table;
}

std::string refusal_name(const std::string& key) {
  return fmt::format("{}{}-refused", ShmDirectory::kPrefix, key);
}

std::string directory_name(const std::string& key) { return ShmDirectory::slot_name(key, 0); }

/// Acquires the presence lock of a segment that still has its name; false if another end is
/// removing it.
bool be_present(ShmSegment& segment) {
  for (int i = 0; i < kReadsMax; ++i) {
    if (segment.lock(kPresence, ShmSegment::Lock::kShared)) return segment.is_named();
    std::this_thread::yield();
  }
  return false;
}

void remove_all(const std::string& key) {
  const std::string prefix = ShmDirectory::kPrefix + key + "-";
  for (const auto& name : shm_names(prefix))
    if (name != directory_name(key)) shm_remove(name);
  shm_remove(directory_name(key));  // last: while it exists, the other segments can be found
}

Error gone(const std::string& key) {
  return error(Code::kUnavailable, "the shared memory of channel {} is being removed", key);
}

}  // namespace

const ShmSlotEntry* ShmTable::find(const KeyedVersion& version) const {
  for (const auto& slot : slots)
    if (!slot.is_free() && slot.version == version) return &slot;
  return nullptr;
}

const ShmSlotEntry* ShmTable::newest(WeightsKey key) const {
  const ShmSlotEntry* found = nullptr;
  for (const auto& slot : slots)
    if (!slot.is_free() && slot.version.key == key &&
        (found == nullptr || slot.publication > found->publication))
      found = &slot;
  return found;
}

std::string ShmDirectory::key_of(const ChannelSetup& setup) {
  std::error_code fault;
  auto folder = std::filesystem::weakly_canonical(setup.run_folder, fault);
  if (fault) folder = setup.run_folder;
  return fmt::format(
      "{}-{:016x}", owner_name(setup.shm_owner),
      stable_hash(fmt::format("{}\n{}\n{}", folder.string(), setup.run_id, setup.resource)));
}

std::string ShmDirectory::owner_name(std::string_view shm_owner) {
  return shm_owner.empty() ? std::to_string(::getuid()) : std::string(shm_owner);
}

std::string ShmDirectory::slot_name(const std::string& key, uint64_t serial) {
  return fmt::format("{}{}-{}", kPrefix, key, serial);
}

Result<std::unique_ptr<ShmDirectory>> ShmDirectory::claim(const ChannelSetup& setup) {
  const std::string key = key_of(setup);
  const Time until = steady_now() + kTakeoverMax;
  for (int i = 0; i < kReadsMax; ++i) {
    auto claimed = ShmSegment::claim(directory_name(key), sizeof(Page), kPublisher);
    while (!claimed.ok() && claimed.error().code() == Code::kExists && steady_now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      claimed = ShmSegment::claim(directory_name(key), sizeof(Page), kPublisher);
    }
    if (!claimed.ok() && claimed.error().code() == Code::kExists)
      return error(Code::kExists, "weight channel '{}' of '{}' has a publisher already",
                   setup.resource, setup.run_folder.string())
          .note("one process publishes; another may take over when it has ended");
    if (!claimed.ok()) return std::move(claimed).error();
    auto segment = std::move(claimed).value();
    if (!be_present(*segment)) continue;
    Page& page = page_of(*segment);
    if (page.magic.load(std::memory_order_acquire) != kDirectoryMagic) {
      const std::string folder = setup.run_folder.string().substr(0, kFolderBytesMax - 1);
      std::memcpy(page.run_folder.data(), folder.data(), folder.size());
      page.magic.store(kDirectoryMagic, std::memory_order_release);
    }
    return std::unique_ptr<ShmDirectory>(new ShmDirectory(key, std::move(segment)));
  }
  return gone(key);
}

Result<std::unique_ptr<ShmDirectory>> ShmDirectory::join(const ChannelSetup& setup) {
  const std::string key = key_of(setup);
  for (int i = 0; i < kReadsMax; ++i) {
    auto opened = ShmSegment::open(directory_name(key), ShmSegment::Access::kRead);
    if (!opened.ok() && opened.error().code() == Code::kIo) return std::move(opened).error();
    if (!opened.ok() || !has_page(**opened))
      return error(Code::kNotFound, "weight channel '{}' has no publisher yet", setup.resource);
    auto segment = std::move(opened).value();
    if (!be_present(*segment)) continue;
    return std::unique_ptr<ShmDirectory>(new ShmDirectory(key, std::move(segment)));
  }
  return gone(key);
}

ShmDirectory::~ShmDirectory() {
  // Release first, then check for other ends: of two ends that close at once, at least one sees
  // none.
  segment_->lock(kPublisher, ShmSegment::Lock::kNone);
  segment_->lock(kPresence, ShmSegment::Lock::kNone);
  ShmLeftover removed;
  if (segment_->is_named()) remove_if_left(key_, removed);
}

Result<ShmTable> ShmDirectory::read() const {
  const Page& page = readable_page_of(*segment_);
  for (int i = 0; i < kReadsMax; ++i) {
    const uint64_t turn = page.turn.load(std::memory_order_acquire);
    if (turn == 0) return ShmTable();
    const auto& table = page.tables[turn % 2];
    const uint64_t num_slots = table[1].load(std::memory_order_relaxed);
    if (num_slots > kShmSlotsMax) continue;  // partly written: the publisher was faster
    Words words(num_words(num_slots));
    for (size_t at = 0; at < words.size(); ++at)
      words[at] = table[at].load(std::memory_order_relaxed);
    // The entry count may have changed in between.
    if (words[0] == turn && words[1] == num_slots && words[kHeadWords - 1] == check_of(words))
      return to_table(words);
  }
  return error(Code::kUnavailable, "the directory of channel {} changes too fast to be read", key_);
}

void ShmDirectory::write(ShmTable table) {
  CHECK(table.slots.size() <= kShmSlotsMax, "too many slots for the directory");
  Page& page = page_of(*segment_);
  table.turn = page.turn.load(std::memory_order_relaxed) + 1;
  const Words words = to_words(table);
  auto& copy = page.tables[table.turn % 2];
  for (size_t at = 0; at < words.size(); ++at) copy[at].store(words[at], std::memory_order_relaxed);
  page.turn.store(table.turn, std::memory_order_release);
}

bool ShmDirectory::has_publisher() const { return segment_->is_locked(kPublisher); }

bool ShmDirectory::offer(ShmPlace place) {
  return !is_open(place) && segment_->lock(uint8_t(kOffered + place), ShmSegment::Lock::kExclusive);
}

void ShmDirectory::withdraw(ShmPlace place) {
  segment_->lock(uint8_t(kOffered + place), ShmSegment::Lock::kNone);
}

bool ShmDirectory::is_open(ShmPlace place) {
  if (!segment_->lock(uint8_t(kOpen + place), ShmSegment::Lock::kExclusive)) return true;
  segment_->lock(uint8_t(kOpen + place), ShmSegment::Lock::kNone);
  return false;
}

/// A separate descriptor, so that each lock ends independently. Check that the directory still has
/// its name after opening, so that both descriptors refer to the same segment.
Result<std::unique_ptr<ShmSegment>> ShmDirectory::hold(ShmPlace place) const {
  ASSIGN_OR_RETURN(auto held, ShmSegment::open(directory_name(key_), ShmSegment::Access::kRead));
  if (segment_->is_named() && held->lock(uint8_t(kOpen + place), ShmSegment::Lock::kShared))
    return held;
  return error(Code::kUnavailable, "place {} of channel {} cannot be held now", place, key_);
}

bool ShmDirectory::is_offered(const ShmSegment& held, ShmPlace place) {
  return held.is_locked(uint8_t(kOffered + place));
}

void ShmDirectory::refuse_devices(std::string_view why) const {
  const auto text = why.substr(0, kRefusalBytesMax);
  const auto note = ShmSegment::create(refusal_name(key_), std::max(text.size(), size_t{1}));
  // If another receiver has said it, or memory is short, nothing is written; the next try repeats
  // it.
  if (note.ok() && !text.empty()) std::memcpy((*note)->writable().data(), text.data(), text.size());
}

std::string ShmDirectory::devices_refused() const {
  const auto note = ShmSegment::open(refusal_name(key_), ShmSegment::Access::kRead);
  if (!note.ok()) return {};
  const auto bytes = (*note)->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ShmDirectory::forget_refusal() const { shm_remove(refusal_name(key_)); }

bool ShmDirectory::remove_if_left(const std::string& key, ShmLeftover& removed) {
  auto opened = ShmSegment::open(directory_name(key), ShmSegment::Access::kWrite);
  // Slots without a directory: it was removed by hand.
  if (!opened.ok() && opened.error().code() == Code::kNotFound)
    opened = ShmSegment::claim(directory_name(key), sizeof(Page), kPublisher);
  if (!opened.ok()) return false;
  auto segment = std::move(opened).value();
  if (!segment->lock(kPresence, ShmSegment::Lock::kExclusive) || !segment->is_named()) return false;
  removed.key = key;
  // An end that was killed while creating the segment leaves it empty.
  if (has_page(*segment)) {
    const auto& folder = readable_page_of(*segment).run_folder;
    removed.run_folder = std::string(folder.data(), ::strnlen(folder.data(), kFolderBytesMax));
  }
  for (const auto& name : shm_names(ShmDirectory::kPrefix + key + "-")) {
    removed.num_segments += 1;
    removed.num_bytes += shm_size(name);
  }
  remove_all(key);
  return true;
}

}  // namespace primerl
