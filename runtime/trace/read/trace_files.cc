// Finds the segments of a trace and loads or builds the index of each.
#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "graph/base/file_lock.h"
#include "graph/base/files.h"
#include "graph/base/suggest.h"
#include "runtime/trace/read/open_trace.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// The catalog is the first frame; it may be missing if that frame is damaged.
std::optional<TraceCatalog> catalog_of(SegmentReader& reader, Status& fault) {
  for (auto frame = reader.next(0); frame;
       frame = reader.next(SegmentReader::next_offset(*frame))) {
    if (frame->kind() != TraceFrameKind::kCatalog) return std::nullopt;
    const auto text = catalog_text(*frame);
    const auto json = text.ok() ? parse_json(*text, "catalog") : Result<Json>(text.error());
    auto catalog = json.ok() ? TraceCatalog::from_json(*json) : Result<TraceCatalog>(json.error());
    if (catalog.ok()) return std::move(catalog).value();
    if (fault.ok()) fault = catalog.error();
    return std::nullopt;
  }
  return std::nullopt;
}

/// The content of the excerpt file; none for a whole run.
Result<std::optional<TraceExcerpt>> read_excerpt(const fs::path& folder,
                                                 const TraceCatalog& catalog) {
  const fs::path file = folder / kExcerptFile;
  std::error_code fault;
  if (!fs::exists(file, fault)) return std::optional<TraceExcerpt>();
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json json, parse_json(text, file.string()));
  ASSIGN_OR_RETURN(const int64_t group, json.get_int("group"));
  ASSIGN_OR_RETURN(const int64_t last_step, json.get_int("last_step"));
  if (group < 0 || std::cmp_greater_equal(group, catalog.groups.size()) || last_step < 1)
    return error(Code::kCorrupt, "'{}' names group {} of {} and step {}", file.string(), group,
                 catalog.groups.size(), last_step);
  return std::optional(
      TraceExcerpt{GroupId(static_cast<uint32_t>(group)), static_cast<uint64_t>(last_step)});
}

/// Whether numbers have the same meaning in both catalogs.
bool same_tables(const TraceCatalog& a, const TraceCatalog& b) {
  const auto tables = [](const TraceCatalog& catalog) {
    const Json json = catalog.to_json();
    Json kept = Json::object();
    for (const char* table : {"tenants", "processes", "groups", "instances", "links", "types"})
      kept.set(table, *json.find(table));
    return kept;
  };
  return tables(a) == tables(b);
}

/// Copies the options of the newest start, which may differ, such as a larger max_steps.
void copy_newest_options(const std::vector<std::shared_ptr<TraceSegment>>& by_start,
                         TraceCatalog& catalog) {
  const auto reader = by_start.back()->reader();
  Status unreadable;
  const auto newest = reader.ok() ? catalog_of(**reader, unreadable) : std::nullopt;
  if (!newest) return;
  catalog.graph_text = newest->graph_text;
  catalog.graph_hash = newest->graph_hash;
}

/// Removes the segments before a cut: those of its incarnation, and all of earlier ones.
void leave_out(const CutHead& cut, std::vector<SegmentFile>& files,
               std::map<std::pair<std::string, uint32_t>, uint64_t>& gone) {
  std::erase_if(files, [&](const SegmentFile& file) {
    if (file.process != cut.process || cut.number == 0) return false;
    const bool is_before = file.incarnation < cut.incarnation ||
                           (file.incarnation == cut.incarnation && file.number < cut.segment);
    uint64_t& through = gone[{file.process, file.incarnation}];
    if (is_before) through = std::max(through, file.number);
    return is_before;
  });
}

/// An unreadable cut is ignored; then steps are missing.
std::vector<std::optional<uint64_t>> read_base_steps(const fs::path& folder, size_t num_groups) {
  std::vector<std::optional<uint64_t>> steps(num_groups);
  for (const fs::path& file : list_base_cuts(folder)) {
    const auto head = read_cut_head(file);
    if (!head.ok()) continue;
    for (const auto& [group, step] : head->steps)
      if (group < num_groups) steps[group] = std::max(steps[group].value_or(0), step);
  }
  return steps;
}

bool has_base(const fs::path& folder) {
  const auto cuts = list_base_cuts(folder);
  return std::ranges::any_of(cuts, [](const fs::path& file) { return read_cut_head(file).ok(); });
}

/// The cuts that may name tenants whose join was retired, or is in a folder that is not read.
std::vector<CutHead> cuts_with_slots(const std::vector<TraceStart>& starts,
                                     const TraceCatalog& catalog, const Trace::Part* part) {
  std::vector<CutHead> heads;
  if (TenantUses(catalog).all().size() == catalog.tenants.size()) return heads;  // no free slot
  if (part != nullptr) heads.assign(part->from.begin(), part->from.end());
  for (const TraceStart& start : starts) {
    const bool is_cut_off =
        std::ranges::any_of(start.gone, [](const auto& of) { return of.second > 0; });
    if (!is_cut_off && &start != &starts.front()) continue;
    for (const fs::path& file : is_cut_off ? list_cuts(start.folder) : list_base_cuts(start.folder))
      if (auto head = read_cut_head(file); head.ok() && !head->slots.empty())
        heads.push_back(std::move(head).value());
  }
  return heads;
}

struct Opening {
  std::vector<std::shared_ptr<TraceSegment>> segments;
  std::vector<TraceFault> faults;
  Status first_fault;
};

void add_unreadable(Opening& opening, const fs::path& file, const Error& fault) {
  if (opening.first_fault.ok()) opening.first_fault = fault;
  TraceFault entry;
  entry.kind = TraceFault::Kind::kDamage;
  entry.file = file.filename().string();
  entry.text = fmt::format("'{}' cannot be read: {}", file.filename().string(), fault.message());
  opening.faults.push_back(std::move(entry));
}

/// Loads indices that are up to date; for the other files it reads only the header.
void open_segments(const std::vector<SegmentFile>& files, uint32_t start, Opening& opening) {
  for (const auto& found : files) {
    const fs::path& file = found.path;
    auto segment = std::make_shared<TraceSegment>();
    segment->file = file;
    segment->start = start;
    segment->index = SegmentIndex::load(file);
    if (segment->index != nullptr) {
      segment->process = segment->index->header().process;
      segment->incarnation = segment->index->header().incarnation;
      segment->number = segment->index->header().number;
    } else {
      const auto reader = segment->reader();
      if (!reader.ok()) {
        add_unreadable(opening, file, reader.error());
        continue;
      }
      segment->process = (*reader)->header().process;
      segment->incarnation = (*reader)->header().incarnation;
      segment->number = (*reader)->header().number;
    }
    opening.segments.push_back(std::move(segment));
  }
}

/// Whether a segment is complete: the process wrote another one after it, or it has an end frame.
bool is_sealed(const std::vector<std::shared_ptr<TraceSegment>>& segments, size_t i) {
  const bool has_next = i + 1 < segments.size() && segments[i + 1]->process == segments[i]->process;
  return has_next || segments[i]->index->header().has_end != 0;
}

/// The writer of a segment holds a lock on it: without that lock the segment will not change any
/// more.
bool is_written_to(const fs::path& segment) {
  std::error_code fault;
  return !fs::exists(segment, fault) || is_locked(segment);
}

/// Builds the missing indices, on as many threads as the machine has cores.
void build_indices(Opening& opening, const TraceCatalog& catalog) {
  std::vector<size_t> missing;
  for (size_t i = 0; i < opening.segments.size(); ++i)
    if (opening.segments[i]->index == nullptr) missing.push_back(i);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t at = next++; at < missing.size(); at = next++) {
      TraceSegment& segment = *opening.segments[missing[at]];
      segment.index = SegmentIndex::build(*segment.opened, segment.file, catalog);
      if (is_sealed(opening.segments, missing[at]) || !is_written_to(segment.file))
        segment.index->save(segment.file);
    }
  };
  const size_t num_threads =
      std::min<size_t>(missing.size(), std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
}

}  // namespace

Result<SegmentReader*> TraceSegment::reader() const {
  const std::lock_guard guard(lock);
  if (opened != nullptr) return opened.get();
  auto reader = SegmentReader::open(file);
  if (!reader.ok() && file.extension() == ".ptr") {
    // It was packed after the folder was listed.
    auto packed = file;
    auto again = SegmentReader::open(packed.replace_extension(".ptrz"));
    if (again.ok()) reader = std::move(again);
  }
  if (!reader.ok()) return reader.error();
  opened = std::move(reader).value();
  usable.store(opened.get(), std::memory_order_release);
  return opened.get();
}

Result<Frame> TraceSegment::frame(uint32_t position, TraceFrameKind kind) const {
  SegmentReader* from = usable.load(std::memory_order_acquire);
  if (from == nullptr) {
    ASSIGN_OR_RETURN(from, reader());
  }
  ASSIGN_OR_RETURN(const Frame found, from->at(uint64_t{position} * kFrameAlignment));
  if (found.kind() != kind)
    return error(Code::kCorrupt, "'{}' holds another frame at {} than its index says",
                 file.filename().string(), found.offset)
        .note("delete the '.index' files beside it: they are made again");
  return found;
}

/// The folder next to `newer` whose record that start followed; empty: that folder does not exist
/// any more.
fs::path followed_by(const fs::path& newer) {
  const auto files = list_segments(newer);
  if (!files.ok() || files->empty()) return {};
  const auto reader = SegmentReader::open(files->front().path);
  if (!reader.ok()) return {};
  Status unreadable;
  const auto catalog = catalog_of(**reader, unreadable);
  if (!catalog || catalog->recovers.empty()) return {};
  const fs::path older = newer.parent_path() / fs::path(catalog->recovers).filename();
  return has_segments(older) ? older : fs::path();
}

bool died_before_first_step(const fs::path& folder) {
  const auto files = list_segments(folder);
  if (!files.ok()) return false;
  const SegmentFile* before = nullptr;
  for (const SegmentFile& file : *files) {
    const bool is_first = before == nullptr || before->process != file.process ||
                          before->incarnation != file.incarnation;
    if (is_first && file.number != 1) return false;
    before = &file;
    const auto reader = SegmentReader::open(file.path);
    if (!reader.ok()) return false;
    for (auto frame = (*reader)->next(0); frame;
         frame = (*reader)->next(SegmentReader::next_offset(*frame)))
      if (frame->kind() == TraceFrameKind::kDelivery) return false;
    if (!(*reader)->damage().empty()) return false;
  }
  return true;
}

/// While a start resumed from cuts, the start that it followed is read too. If the newest start
/// died before its first step, it adds nothing to the run. Then the start that it followed counts
/// as the newest.
Result<std::vector<fs::path>> trace_folders(const fs::path& given) {
  ASSIGN_OR_RETURN(fs::path newest, find_trace_folder(given));
  if (newest == given) return std::vector<fs::path>{newest};  // the folder of one start was given
  std::vector<fs::path> passed;
  for (fs::path older = followed_by(newest); !older.empty() && died_before_first_step(newest);
       older = followed_by(newest)) {
    passed.push_back(newest);
    if (std::ranges::find(passed, older) != passed.end()) break;
    newest = older;
  }
  std::vector<fs::path> folders{newest};
  while (has_base(folders.front())) {
    const fs::path older = followed_by(folders.front());
    if (older.empty() || std::ranges::find(folders, older) != folders.end()) break;
    folders.insert(folders.begin(), older);
  }
  return folders;
}

Result<TraceFiles> find_trace_files(const fs::path& given, const Trace::Part* part) {
  ASSIGN_OR_RETURN(auto folders, trace_folders(given));
  if (part != nullptr) folders = {folders.back()};
  TraceFiles found;
  Opening opening;
  for (const fs::path& folder : folders) {
    ASSIGN_OR_RETURN(auto files, list_segments(folder));
    TraceStart start{.folder = folder, .base_steps = {}, .gone = {}};
    for (const SegmentFile& file : files)
      start.gone.try_emplace({file.process, file.incarnation},
                             retired_through(folder, file.process, file.incarnation));
    if (part != nullptr) {
      for (const CutHead& cut : part->from) leave_out(cut, files, start.gone);
      if (!part->processes.empty())
        std::erase_if(files, [part](const SegmentFile& file) {
          return !part->processes.contains(file.process);
        });
    }
    open_segments(files, static_cast<uint32_t>(found.starts.size()), opening);
    found.starts.push_back(std::move(start));
  }
  std::ranges::stable_sort(opening.segments, {}, [](const auto& segment) {
    return std::tuple(segment->process, segment->start, segment->incarnation, segment->number);
  });
  std::optional<TraceCatalog> catalog;
  uint64_t catalog_hash = 0;
  // From the first incarnation: the catalog of a restarted process does not describe the start.
  auto by_incarnation = opening.segments;
  std::ranges::stable_sort(by_incarnation, {}, [](const auto& segment) {
    return std::pair(segment->start, segment->incarnation);
  });
  for (size_t i = 0; i < by_incarnation.size() && !catalog; ++i) {
    const auto reader = by_incarnation[i]->reader();
    if (reader.ok()) catalog = catalog_of(**reader, opening.first_fault);
  }
  if (catalog && found.starts.size() > 1) copy_newest_options(by_incarnation, *catalog);
  if (!catalog) {
    if (!opening.first_fault.ok()) return opening.first_fault.error();
    return error(Code::kCorrupt, "no segment in '{}' has a readable catalog",
                 folders.front().string());
  }
  found.num_indexed = static_cast<uint64_t>(
      std::ranges::count_if(opening.segments, [](const auto& s) { return s->index != nullptr; }));
  build_indices(opening, *catalog);
  for (const auto& segment : opening.segments) {
    const IndexHeader& header = segment->index->header();
    if (header.run_id != opening.segments.front()->index->header().run_id)
      return error(Code::kCorrupt, "'{}' belongs to another run than '{}'",
                   segment->file.filename().string(),
                   opening.segments.front()->file.filename().string())
          .note("one trace folder holds one run: move the other's segments away");
    // Each incarnation writes its own catalog; within one incarnation all are equal.
    if (header.catalog_hash == 0 || header.catalog_hash == catalog_hash) continue;
    catalog_hash = header.catalog_hash;
    ASSIGN_OR_RETURN(SegmentReader * reader, segment->reader());
    Status fault;
    const auto other = catalog_of(*reader, fault);
    if (other && !same_tables(*other, *catalog))
      return error(Code::kCorrupt, "'{}' was recorded with another graph or other message types",
                   segment->file.filename().string())
          .note(
              "the run was resumed with a changed graph or program: move the segments of one "
              "of them away");
  }
  ASSIGN_OR_RETURN(found.excerpt, read_excerpt(folders.back(), *catalog));
  for (TraceStart& start : found.starts)
    start.base_steps = read_base_steps(start.folder, catalog->groups.size());
  found.saved = cuts_with_slots(found.starts, *catalog, part);
  found.catalog = std::move(*catalog);
  found.is_run = part == nullptr && folders.back() != given;
  found.segments.assign(opening.segments.begin(), opening.segments.end());
  found.faults = std::move(opening.faults);
  return found;
}

}  // namespace primerl
