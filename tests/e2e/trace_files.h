/// Reads the trace of a run folder frame by frame, for the tests of whole runs.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/segment_files.h"
#include "runtime/trace/segment_reader.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {

struct TraceContent {
  std::vector<SegmentFile> segments;
  TraceCatalog catalog;                          // of the newest segment
  std::map<uint32_t, std::set<uint64_t>> steps;  // delivered steps, by group
  std::map<std::string, uint64_t> stored;        // payloads, by message name
  std::vector<GroupEnded> groups_ended;
  uint64_t num_deliveries = 0;
  uint64_t num_bad_bytes = 0;  // neither frame nor hole
  uint64_t num_gaps = 0;
  uint64_t num_ends = 0;
  uint64_t deliveries_at_end = 0;  // as the end frame says

  /// Whether every group has its steps from 1 to its last, with none missing.
  bool is_dense() const {
    for (const auto& [group, done] : steps)
      if (*done.begin() != 1 || *done.rbegin() != done.size()) return false;
    return true;
  }
};

inline void add_frame(const Frame& frame, TraceContent& content) {
  const auto json_of = [&frame] { return parse_json(catalog_text(frame).value(), "catalog"); };
  switch (frame.kind()) {
    case TraceFrameKind::kCatalog: {
      const auto json = json_of();
      ASSERT_TRUE(json.ok()) << json.error().text();
      auto catalog = TraceCatalog::from_json(*json);
      ASSERT_TRUE(catalog.ok()) << catalog.error().text();
      content.catalog = std::move(catalog).value();
      break;
    }
    case TraceFrameKind::kDelivery:
      ++content.num_deliveries;
      EXPECT_TRUE(content.steps[frame.header().group].insert(frame.as<DeliveryFrame>().step).second)
          << "a step stands twice";
      break;
    case TraceFrameKind::kPayload: {
      const auto& payload = frame.as<PayloadFrame>();
      const std::string& type = content.catalog.types.at(payload.type).name;
      ++content.stored[type];
      if (type != GroupEnded::kName) break;
      const auto body = frame.after<PayloadFrame>().first(payload.body_bytes);
      const auto decoded = decode_message(message_type<GroupEnded>(), body);
      ASSERT_TRUE(decoded.ok()) << decoded.error().text();
      content.groups_ended.push_back(decoded->as<GroupEnded>());
      break;
    }
    case TraceFrameKind::kGap:
      ++content.num_gaps;
      break;
    case TraceFrameKind::kEnd:
      ++content.num_ends;
      content.deliveries_at_end = frame.as<EndFrame>().num_deliveries;
      break;
    default:
      break;
  }
}

inline TraceContent read_trace(const std::filesystem::path& folder) {
  TraceContent content;
  auto files = list_segments(folder);
  EXPECT_TRUE(files.ok()) << folder;
  if (!files.ok()) return content;
  content.segments = *files;
  for (const auto& file : content.segments) {
    const auto reader = SegmentReader::open(file.path);
    EXPECT_TRUE(reader.ok()) << reader.error().text();
    if (!reader.ok()) continue;
    uint64_t offset = 0;
    while (const auto frame = (*reader)->next(offset)) {
      add_frame(*frame, content);
      offset = SegmentReader::next_offset(*frame);
    }
    for (const auto& damage : (*reader)->damage())
      if (!damage.is_hole) content.num_bad_bytes += damage.num_bytes;
  }
  return content;
}

}  // namespace primerl
