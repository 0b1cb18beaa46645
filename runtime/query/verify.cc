#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "graph/base/files.h"
#include "runtime/query/maintenance.h"
#include "runtime/trace/content_store.h"
#include "runtime/trace/cut_file.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/read/index.h"
#include "runtime/trace/segment_files.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {
namespace {

using Kind = TraceFault::Kind;

class Verifier {
 public:
  /// `is_continued`: a later start resumed from cuts of this one.
  Verifier(std::filesystem::path folder, bool is_continued)
      : folder_(std::move(folder)), is_continued_(is_continued), store_(folder_ / "blobs") {}

  VerifyReport run(const std::vector<SegmentFile>& files) {
    for (size_t i = 0; i < files.size(); ++i) {
      const SegmentFile& file = files[i];
      is_last_ = i + 1 == files.size() || files[i + 1].process != file.process ||
                 files[i + 1].incarnation != file.incarnation;
      if (last_.process != file.process || last_.incarnation != file.incarnation) {
        end_process(&file);
        begin_process(file);
      }
      check_number(file);
      last_ = file;
      check_segment(file);
    }
    end_process(nullptr);
    check_cuts();
    return std::move(report_);
  }

 private:
  void add(Kind kind, const std::string& file, uint64_t offset, std::string text) {
    if (is_continued_) text = fmt::format("{}: {}", folder_.filename().string(), text);
    report_.faults.push_back({.kind = kind, .file = file, .offset = offset, .text = text});
  }

  void begin_process(const SegmentFile& first) {
    last_ = {};
    seed_ = 0;
    catalog_.clear();
    num_deliveries_ = 0;
    num_gaps_ = 0;
    has_end_ = false;
    is_whole_ = true;
    const uint64_t retired = retired_through(folder_, first.process, first.incarnation);
    last_.number = std::min(retired, first.number - 1);
    if (last_.number == 0) return;
    is_whole_ = false;
    add(Kind::kRetired, first.path.filename().string(), 0,
        fmt::format("segments 1 to {} of '{}' were retired", last_.number, first.process));
  }

  /// `next`: the next file to check; null: none.
  void end_process(const SegmentFile* next) {
    if (last_.process.empty() || has_end_) return;
    if (next != nullptr && next->process == last_.process) {
      add(Kind::kReplaced, name(), 0,
          fmt::format("'{}' (incarnation {}) died and was started again as incarnation {}",
                      last_.process, last_.incarnation, next->incarnation));
      return;
    }
    if (is_continued_) {
      add(Kind::kReplaced, name(), 0,
          fmt::format("'{}' (incarnation {}) was cut off; the run went on from its saved state",
                      last_.process, last_.incarnation));
      return;
    }
    report_.is_closed = false;
    if (is_snapshot(folder_, last_.process, last_.incarnation))
      add(Kind::kSnapshot, name(), 0,
          fmt::format("a snapshot: '{}' (incarnation {}) was asked for it and went on",
                      last_.process, last_.incarnation));
    add(Kind::kCutTail, name(), 0,
        fmt::format("'{}' (incarnation {}) did not close its trace: what came last may be missing",
                    last_.process, last_.incarnation));
  }

  std::string name() const { return last_.path.filename().string(); }

  void check_number(const SegmentFile& file) {
    const uint64_t expected = last_.number + 1;
    if (file.number == expected) return;
    is_whole_ = false;
    seed_ = 0;
    const auto missing = segment_path(folder_, file.process, file.incarnation, expected);
    add(Kind::kMissingSegment, missing.filename().string(), 0,
        file.number == expected + 1
            ? fmt::format("segment {} of '{}' is missing", expected, file.process)
            : fmt::format("segments {} to {} of '{}' are missing", expected, file.number - 1,
                          file.process));
  }

  void check_segment(const SegmentFile& file) {
    ++report_.num_segments;
    report_.num_bytes += file.num_bytes;
    auto opened = SegmentReader::open(file.path);
    if (!opened.ok()) {
      is_whole_ = false;
      seed_ = 0;
      add(Kind::kDamage, name(), 0, opened.error().message());
      return;
    }
    SegmentReader& reader = **opened;
    check_index(file);
    check_header(file, reader.header());
    uint64_t offset = 0;
    bool is_first = true;
    while (auto frame = reader.next(offset)) {
      check_frame(*frame, is_first);
      is_first = false;
      offset = SegmentReader::next_offset(*frame);
    }
    if (is_first) add(Kind::kDamage, name(), 0, "it holds no frame, not even a catalog");
    for (const auto& damage : reader.damage()) check_damage(damage);
  }

  void check_header(const SegmentFile& file, const SegmentHeader& header) {
    if (header.number != file.number || header.incarnation != file.incarnation)
      add(Kind::kDamage, name(), 0,
          fmt::format("its header says segment {} of incarnation {}: was it renamed?",
                      header.number, header.incarnation));
    if (seed_ != 0 && header.previous_seed != seed_)
      add(Kind::kDamage, name(), 0, "it does not follow the segment before it");
    seed_ = header.seed;
    if (run_id_ && *run_id_ != header.run_id)
      add(Kind::kDamage, name(), 0,
          fmt::format("it belongs to run {:016x}, others to {:016x}", header.run_id, *run_id_));
    run_id_ = header.run_id;
  }

  void check_frame(const Frame& frame, bool is_first) {
    ++report_.num_frames;
    if (is_first != (frame.kind() == TraceFrameKind::kCatalog))
      add(Kind::kDamage, name(), frame.offset, "a segment begins with its one catalog; not here");
    // A process that was killed while it closed its trace leaves segments that were prepared: they
    // have only a catalog.
    if (has_end_ && !is_first)
      add(Kind::kDamage, name(), frame.offset, "a frame behind the end frame");
    switch (frame.kind()) {
      case TraceFrameKind::kCatalog:
        check_catalog(frame);
        break;
      case TraceFrameKind::kDelivery:
        ++num_deliveries_;
        ++report_.num_deliveries;
        break;
      case TraceFrameKind::kPayload:
        check_blobs(frame);
        break;
      case TraceFrameKind::kGap:
        check_gap(frame);
        break;
      case TraceFrameKind::kEnd:
        check_end(frame);
        break;
      default:
        break;
    }
  }

  void check_catalog(const Frame& frame) {
    const auto bytes = frame.after<TraceFrameHeader>();
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!catalog_.empty() && text != catalog_)
      add(Kind::kDamage, name(), frame.offset, "its catalog is not that of the segment before it");
    catalog_ = text;
  }

  void check_gap(const Frame& frame) {
    const auto& gap = frame.as<GapFrame>();
    num_gaps_ += gap.num_lost;
    add(Kind::kGap, name(), frame.offset,
        fmt::format("{} frames of group {} were lost, from step {} to {}", gap.num_lost,
                    gap.header.group, gap.first_step, gap.last_step));
  }

  void check_end(const Frame& frame) {
    has_end_ = true;
    const auto& end = frame.as<EndFrame>();
    if (is_whole_ && end.num_deliveries != num_deliveries_)
      add(Kind::kDamage, name(), frame.offset,
          fmt::format("the end frame counts {} deliveries, {} are there", end.num_deliveries,
                      num_deliveries_));
    if (is_whole_ && end.num_lost != num_gaps_)
      add(Kind::kGap, name(), frame.offset,
          fmt::format("the end frame counts {} lost frames, the gaps {}", end.num_lost, num_gaps_));
  }

  /// A resume reads a valid index instead of its segment, and rebuilds a damaged one.
  void check_index(const SegmentFile& file) {
    const auto index = SegmentIndex::file_of(file.path);
    const auto mapped = map_file(index);
    if (!mapped.ok()) return;  // it is built when the trace is opened
    ++report_.num_indices;
    if (SegmentIndex::parse(mapped->owner, mapped->bytes) == nullptr)
      add(Kind::kDamage, index.filename().string(), 0,
          fmt::format("'{}' is damaged, or of another version of the program: remove it, it is "
                      "made again",
                      index.filename().string()));
  }

  /// A resume uses the newest readable cut of each process.
  void check_cuts() {
    for (const auto& file : list_cuts(folder_)) {
      ++report_.num_cuts;
      const auto cut = read_cut(file);
      if (!cut.ok())
        add(Kind::kDamage, file.filename().string(), 0,
            fmt::format("'{}': {}", file.filename().string(), cut.error().message()));
    }
  }

  void check_blobs(const Frame& frame) {
    visit_payload(frame.bytes, [&](const PayloadPart& part) {
      if (!part.is_stored) return;
      ContentHash hash;
      std::memcpy(hash.data(), part.bytes.data(), hash.size());
      auto [known, is_new] = blob_bytes_.try_emplace(hash, 0);
      if (is_new) {
        ++report_.num_blobs;
        const auto content = store_.load(hash);
        if (content.ok()) {
          known->second = content->size();
        } else {
          const bool is_there = content.error().code() != Code::kNotFound;
          add(is_there ? Kind::kDamage : Kind::kMissingBlob, "blobs/" + to_hex(hash), 0,
              fmt::format("a payload of '{}' at {} needs it: {}", name(), frame.offset,
                          content.error().message()));
          known->second = part.num_bytes;
        }
      }
      if (known->second != part.num_bytes)
        add(Kind::kDamage, name(), frame.offset,
            fmt::format("a payload of {} bytes in a blob of {}", part.num_bytes, known->second));
    });
  }

  void check_damage(const Damage& damage) {
    if (damage.is_hole) {
      add(Kind::kHole, name(), damage.offset,
          fmt::format("{} bytes were reserved and never written", damage.num_bytes));
    } else {
      is_whole_ = false;
      // Records before the cut were synced when the cut was made.
      const Kind tail = is_continued_ && is_last_ ? Kind::kReplaced : Kind::kCutTail;
      add(damage.is_tail ? tail : Kind::kDamage, name(), damage.offset,
          damage.is_tail ? fmt::format("the last {} bytes are no frame", damage.num_bytes)
                         : fmt::format("{} bytes are damaged", damage.num_bytes));
    }
  }

  const std::filesystem::path folder_;
  const bool is_continued_;
  const ContentStore store_;
  VerifyReport report_;
  std::map<ContentHash, uint64_t> blob_bytes_;
  std::optional<uint64_t> run_id_;
  // State of the current process and incarnation.
  SegmentFile last_;
  uint64_t seed_ = 0;  // of the previous segment; 0: unknown
  std::string catalog_;
  uint64_t num_deliveries_ = 0, num_gaps_ = 0;
  bool has_end_ = false;
  bool is_whole_ = true;  // all segments from the first, without damage
  bool is_last_ = false;  // the newest segment
};

}  // namespace

bool VerifyReport::is_sound() const {
  return std::none_of(faults.begin(), faults.end(),
                      [](const TraceFault& fault) { return fault.is_fault(); });
}

Result<VerifyReport> verify_trace(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const auto folders, trace_folders(folder));
  VerifyReport sum;
  for (const auto& of_start : folders) {
    ASSIGN_OR_RETURN(const auto files, list_segments(of_start));
    VerifyReport report = Verifier(of_start, of_start != folders.back()).run(files);
    sum.num_starts += 1;
    sum.num_segments += report.num_segments;
    sum.num_bytes += report.num_bytes;
    sum.num_frames += report.num_frames;
    sum.num_deliveries += report.num_deliveries;
    sum.num_blobs += report.num_blobs;
    sum.num_indices += report.num_indices;
    sum.num_cuts += report.num_cuts;
    sum.is_closed = report.is_closed;
    std::ranges::move(report.faults, std::back_inserter(sum.faults));
  }
  // Adds what is missing where one start resumed from another, or from a missing cut.
  const auto trace = Trace::open(folder);
  if (!trace.ok()) return sum;  // reported above
  sum.graph_text = (*trace)->catalog().graph_text;
  for (const TraceFault& fault : (*trace)->faults()) {
    // A tenant event and its note are checked together, by their step: such a fault has no file.
    const bool is_of_event = fault.kind == Kind::kDamage && fault.file.empty();
    if (fault.kind == Kind::kMissingStep || fault.kind == Kind::kOlderMissing || is_of_event)
      sum.faults.push_back(fault);
  }
  return sum;
}

}  // namespace primerl
