/// Excerpt: the part of a trace that is needed to replay the first steps of one actor group, as a
/// trace of its own: its records up to a step, the contents of its inputs, and the deliveries of
/// what it sent. A file beside its segments marks it as an excerpt.
///
/// Contents that are not in the trace are taken from a replay: the collector watches it
/// (ReplaySetup::watcher) and keeps what real groups sent to the actor group.
///
/// Threads: on_step() from any; the rest from one, when the replay has ended.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/wiring.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

class SegmentWriter;

class ExcerptCollector final : public DeliveryObserver {
 public:
  /// Of steps 1 to `last_step`. `trace` and `wiring` outlive the collector.
  ExcerptCollector(const Trace& trace, const Wiring& wiring, GroupId group, uint64_t last_step);

  void on_step(const StepRecord& record) override;

  /// Replacements for the recorded values, because the excerpt's files are not where the run's
  /// files were.
  struct Places {
    std::string graph_text;
    std::vector<std::string> resumed_from;  // by tenant slot, below the folder above `folder`
  };
  /// Writes the excerpt into `folder`, which must not exist. kNotFound names an input whose content
  /// was neither stored nor sent in the replay.
  Status write(const std::filesystem::path& folder, Places places) const;

 private:
  TraceCatalog excerpt_catalog(Places places) const;
  Status write_step(SegmentWriter& writer, const TraceStep& step) const;
  Status write_input(SegmentWriter& writer, const TraceStep& step) const;
  /// The deliveries of the group's messages, as far as known for the last step: a program that
  /// sends other messages must find as many to compare with.
  std::set<std::pair<GroupId, uint64_t>> deliveries_of_emissions() const;

  const Trace& trace_;
  const Wiring& wiring_;
  const GroupId group_;
  const uint64_t last_step_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<MessageKey, StoredPayload> inputs_;            // sent by real groups
  std::map<std::pair<LinkId, uint32_t>, uint64_t> sent_;  // newest sequence by link and incarnation
};

}  // namespace primerl
