#include "runtime/replay/follow_file.h"

#include <algorithm>
#include <set>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "runtime/exec/wiring.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

constexpr const char* kSchema = "primerl.follow/1";

Json to_json(const FollowFile& follow) {
  Json absent = Json::array(), bytes_before = Json::object();
  for (const AbsentProcess& each : follow.absent)
    absent.push_back(Json::object()
                         .set("process", int64_t{each.process.value})
                         .set("incarnation", int64_t{each.incarnation}));
  for (const auto& [file, bytes] : follow.bytes_before) bytes_before.set(file, bytes);
  Json last_steps = Json::array();
  for (const uint64_t step : follow.last_steps) last_steps.push_back(static_cast<int64_t>(step));
  return Json::object()
      .set("schema", kSchema)
      .set("record", follow.record.string())
      .set("cuts", Json::list(follow.cuts))
      .set("last_steps", std::move(last_steps))
      .set("absent", std::move(absent))
      .set("ended_ns", follow.ended.to_nanoseconds())
      .set("incarnation", int64_t{follow.incarnation})
      .set("resumed_from", Json::list(follow.resumed_from))
      .set("bytes_before", std::move(bytes_before))
      .set("zero_ns", follow.zero_ns)
      .set("wall_zero_seconds", follow.wall_zero_seconds);
}

Result<std::vector<std::string>> texts_of(const Json& json, const char* member) {
  const Json* list = json.find(member);
  if (list == nullptr || !list->is_array()) return error(Code::kCorrupt, "'{}' is no list", member);
  std::vector<std::string> texts;
  for (const Json& each : list->as_array()) {
    if (!each.is_string()) return error(Code::kCorrupt, "'{}' holds another thing", member);
    texts.push_back(each.as_string());
  }
  return texts;
}

Result<FollowFile> from_json(const Json& json, const Plan& plan) {
  FollowFile follow;
  ASSIGN_OR_RETURN(const std::string schema, json.get_string("schema"));
  if (schema != kSchema)
    return error(Code::kCorrupt, "its schema is '{}', not '{}'", schema, kSchema);
  ASSIGN_OR_RETURN(follow.record, json.get_string("record"));
  ASSIGN_OR_RETURN(follow.cuts, texts_of(json, "cuts"));
  ASSIGN_OR_RETURN(follow.resumed_from, texts_of(json, "resumed_from"));
  ASSIGN_OR_RETURN(const int64_t ended_ns, json.get_int("ended_ns"));
  follow.ended = Time::from_nanoseconds(ended_ns);
  ASSIGN_OR_RETURN(const int64_t incarnation, json.get_int("incarnation"));
  follow.incarnation = static_cast<uint32_t>(incarnation);
  ASSIGN_OR_RETURN(follow.zero_ns, json.get_int("zero_ns"));
  ASSIGN_OR_RETURN(follow.wall_zero_seconds, json.get_double("wall_zero_seconds"));
  const Json* steps = json.find("last_steps");
  const Json* absent = json.find("absent");
  const Json* bytes_before = json.find("bytes_before");
  if (steps == nullptr || !steps->is_array() || steps->as_array().size() != plan.groups.size())
    return error(Code::kCorrupt, "'last_steps' does not have {} numbers", plan.groups.size());
  for (const Json& step : steps->as_array()) {
    if (!step.is_integer()) return error(Code::kCorrupt, "'last_steps' holds another thing");
    follow.last_steps.push_back(static_cast<uint64_t>(step.as_int()));
  }
  if (absent == nullptr || !absent->is_array() || bytes_before == nullptr ||
      !bytes_before->is_object())
    return error(Code::kCorrupt, "'absent' or 'bytes_before' is missing");
  for (const Json& each : absent->as_array()) {
    ASSIGN_OR_RETURN(const int64_t process, each.get_int("process"));
    ASSIGN_OR_RETURN(const int64_t of, each.get_int("incarnation"));
    if (process < 0 || static_cast<size_t>(process) >= plan.processes.size())
      return error(Code::kCorrupt, "'absent' names process {} of {}", process,
                   plan.processes.size());
    follow.absent.push_back({ProcessId(static_cast<uint32_t>(process)), static_cast<uint32_t>(of)});
  }
  for (const auto& [file, bytes] : bytes_before->as_object()) {
    ASSIGN_OR_RETURN(const int64_t size, bytes_before->get_int(file));
    follow.bytes_before.emplace_back(file, static_cast<uint64_t>(size));
  }
  return follow;
}

/// The process itself and the processes that it sends to: their handled messages decide what is
/// sent again.
std::set<std::string> needed_by(const Plan& plan, ProcessId process) {
  std::set<std::string> names{plan.process(process).name};
  const auto wiring = make_wiring(plan);
  for (const WiredLink& link : wiring->links)
    if (plan.process_of(link.sender) == process)
      names.insert(plan.process(plan.process_of(link.target)).name);
  return names;
}

}  // namespace

bool FollowFile::is_absent(ProcessId process) const {
  return std::ranges::any_of(absent, [&](const auto& each) { return each.process == process; });
}

bool has_record(const std::filesystem::path& folder) { return has_segments(folder); }

Result<std::filesystem::path> write_follow_file(const FollowFile& follow) {
  const auto file = follow.record / "follow.json";
  RETURN_IF_ERROR(replace_file(system_files(), file, to_json(follow).dump() + "\n"));
  return file;
}

Result<FollowFile> read_follow_file(const std::filesystem::path& file, const Plan& plan) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json json, parse_json(text, file.string()));
  auto follow = from_json(json, plan);
  if (!follow.ok()) return std::move(follow).error().while_doing("reading '" + file.string() + "'");
  return follow;
}

Result<FollowedRecord> open_followed(const Plan& plan, const FollowFile& follow,
                                     ProcessId process) {
  FollowedRecord followed;
  const auto needed = needed_by(plan, process);
  std::vector<CutFile> files;
  std::vector<CutHead> heads;
  for (const std::string& path : follow.cuts) {
    ASSIGN_OR_RETURN(CutHead head, read_cut_head(path));
    if (!needed.contains(head.process)) continue;
    ASSIGN_OR_RETURN(CutFile file, read_cut(path));
    files.push_back(std::move(file));
    if (head.process == plan.process(process).name) followed.base = head;
    heads.push_back(std::move(head));
  }
  followed.cuts = cuts_of(plan, files);
  ASSIGN_OR_RETURN(auto trace, Trace::open(follow.record, {.from = heads, .processes = needed}));
  RecordPrefix& prefix = followed.prefix;
  prefix.trace = trace_up_to(std::move(trace), follow.last_steps);
  prefix.absent = follow.absent;
  for (const auto& group : plan.groups) prefix.is_absent.push_back(follow.is_absent(group.process));
  prefix.ended = follow.ended;
  prefix.incarnation = follow.incarnation;
  return followed;
}

}  // namespace primerl
