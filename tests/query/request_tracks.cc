#include "tests/query/request_tracks.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

/// One track: a span must end within its outer span and must not begin before the last span.
class TrackReader {
 public:
  TrackReader(const std::string& name, std::vector<RequestSpan>& spans,
              std::vector<std::string>& faults)
      : name_(name), spans_(spans), faults_(faults) {}

  void read(const Json& event) {
    const double at = event.find("ts")->as_double();
    const std::string& span = event.find("name")->as_string();
    if (at < last_) fault(span, "runs backwards");
    last_ = at;
    if (event.find("ph")->as_string() == "b") {
      const Json* facts = event.find("args");
      open_.push_back(spans_.size());
      spans_.push_back({span, facts == nullptr ? "" : facts->dump(), at, -1, open_.size()});
    } else if (open_.empty() || spans_[open_.back()].name != span) {
      fault(span, "ends, but does not run");
    } else {
      spans_[open_.back()].end_us = at;
      open_.pop_back();
    }
    if (open_.empty()) ++num_whole_;
  }
  void finish() {
    if (!open_.empty()) fault(spans_[open_.back()].name, "never ends");
    if (num_whole_ != 1) fault("", "is not one span with others in it");
  }

 private:
  void fault(const std::string& span, const char* what) {
    faults_.push_back(name_ + ": '" + span + "' " + what);
  }

  const std::string name_;
  std::vector<RequestSpan>& spans_;
  std::vector<std::string>& faults_;
  std::vector<size_t> open_;
  double last_ = -1e300;
  int num_whole_ = 0;
};

}  // namespace

int RequestTracks::num_of(const std::string& category, const std::string& name) const {
  int count = 0;
  for (const auto& [track, spans] : tracks)
    for (const RequestSpan& span : spans) count += track.first == category && span.name == name;
  return count;
}

std::string RequestTracks::facts(const std::string& category, const std::string& id,
                                 const std::string& name) const {
  const auto track = tracks.find({category, id});
  if (track == tracks.end()) return "";
  std::string found;
  for (const RequestSpan& span : track->second)
    if (span.name == name) found = span.facts;
  return found;
}

std::string RequestTracks::text() const {
  std::string text;
  for (const auto& [track, spans] : tracks) {
    text += track.first + " " + track.second + "\n";
    for (const RequestSpan& span : spans)
      text += std::string(span.depth * 2, ' ') +
              fmt::format("{} {}..{}\n", span.name, span.begin_us, span.end_us);
  }
  return text;
}

RequestTracks tracks_in(const std::string& events) {
  RequestTracks tracks;
  const auto json = parse_json(events, "events");
  if (!json.ok()) {
    tracks.faults.push_back(json.error().text());
    return tracks;
  }
  std::map<std::pair<std::string, std::string>, TrackReader> readers;
  for (const Json& event : json->as_array()) {
    const std::string& phase = event.find("ph")->as_string();
    if (phase != "b" && phase != "e") continue;
    const std::pair track(event.find("cat")->as_string(), event.find("id")->as_string());
    const auto reader = readers.try_emplace(track, track.first + " " + track.second,
                                            tracks.tracks[track], tracks.faults);
    reader.first->second.read(event);
  }
  for (auto& [track, reader] : readers) reader.finish();
  return tracks;
}

RequestTracks tracks_of(const Trace& trace, const ChromeOptions& options) {
  std::string text;
  const Status written = write_chrome_trace(trace, options, [&](std::string_view part) {
    text += part;
    return true;
  });
  EXPECT_TRUE(written.ok());
  const auto json = parse_json(text, "export");
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().text());
  return json.ok() ? tracks_in(json->find("traceEvents")->dump()) : RequestTracks();
}

}  // namespace primerl
