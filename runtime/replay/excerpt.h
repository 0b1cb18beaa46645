/// Excerpt: the part of a trace that is needed to replay the first steps of one actor group, as a
/// trace of its own. It has the group's records up to a step, the contents of its inputs, and the
/// deliveries of its messages. A file beside its segments marks it as an excerpt.
///
/// Contents that are not in the trace come from a replay: the collector observes it
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
  /// Collects steps 1 to `last_step`. `trace` and `wiring` must stay valid while the collector
  /// exists.
  ExcerptCollector(const Trace& trace, const Wiring& wiring, GroupId group, uint64_t last_step);

  void on_step(const StepRecord& record) override;

  /// Replaces recorded paths, because the excerpt's files are in other folders than the run's
  /// files.
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
  /// The known deliveries of the group's messages up to the last step. The replay compares its
  /// emissions with them, also when the program sends other messages.
  std::set<std::pair<GroupId, uint64_t>> deliveries_of_emissions() const;

  const Trace& trace_;
  const Wiring& wiring_;
  const GroupId group_;
  const uint64_t last_step_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<MessageKey, StoredPayload> inputs_;            // sent by real groups
  std::map<std::pair<LinkId, uint32_t>, uint64_t> sent_;  // newest sequence number by link and
                                                          // incarnation
};

}  // namespace primerl
