#include "runtime/trace/cut_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "graph/base/random.h"
#include "runtime/trace/catalog.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "PRMLCUT\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kPrefixBytes = 16;
constexpr std::string_view kCutSchema = "primerl.cut/1";

struct Name {
  std::string process;
  uint32_t incarnation = 0;
  uint64_t number = 0;
};

template <class T>
bool take_number(std::string_view& text, T& number) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return false;
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data() + dot + 1, end, number);
  text.remove_suffix(text.size() - dot);
  return fault == std::errc() && stop == end;
}

std::optional<Name> parse_name(const fs::path& file) {
  if (file.extension() != ".cut") return std::nullopt;
  const std::string stem = file.stem().string();
  std::string_view left = stem;
  Name name;
  if (!take_number(left, name.number) || !take_number(left, name.incarnation)) return std::nullopt;
  name.process = std::string(left);
  return name;
}

std::string hex_text(uint64_t number) { return fmt::format("{:016x}", number); }

Json head_json(const CutHead& head, size_t body_bytes, std::span<const Blob> blobs) {
  Json steps = Json::array(), learners = Json::array(), files = Json::array(),
       sizes = Json::array(), open = Json::array(), slots = Json::array();
  for (const auto& [group, step] : head.steps)
    steps.push_back(Json::object().set("group", uint64_t{group}).set("step", step));
  for (const auto& [tenant, step] : head.learner_steps)
    learners.push_back(Json::object().set("tenant", uint64_t{tenant}).set("step", step));
  for (const uint32_t tenant : head.open_tenants) open.push_back(Json(uint64_t{tenant}));
  for (const CutSlot& each : head.slots)
    slots.push_back(Json::object()
                        .set("tenant", uint64_t{each.slot.value})
                        .set("number", uint64_t{each.tenancy})
                        .set("name", each.name));
  for (const auto& [file, bytes] : head.line_files)
    files.push_back(Json::object().set("file", file).set("bytes", bytes));
  for (const Blob& blob : blobs) sizes.push_back(Json(static_cast<uint64_t>(blob.size())));
  Json json = Json::object();
  json.set("schema", kCutSchema)
      .set("run_id", hex_text(head.run_id))
      .set("program_version", head.program_version)
      .set("state_hash", hex_text(head.state_hash))
      .set("process", head.process)
      .set("incarnation", uint64_t{head.incarnation})
      .set("number", head.number)
      .set("at_ns", head.at.to_nanoseconds())
      .set("segment", head.segment)
      .set("steps", std::move(steps))
      .set("learner_steps", std::move(learners));
  if (!head.open_tenants.empty()) json.set("open_tenants", std::move(open));
  if (!head.slots.empty()) json.set("slots", std::move(slots));
  return std::move(json)
      .set("line_files", std::move(files))
      .set("body_bytes", static_cast<uint64_t>(body_bytes))
      .set("blob_bytes", std::move(sizes));
}

Result<uint64_t> get_hex(const Json& json, std::string_view key) {
  ASSIGN_OR_RETURN(const std::string digits, json.get_string(key));
  uint64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, fault] = std::from_chars(digits.data(), end, number, 16);
  if (fault != std::errc() || stop != end || digits.size() != 16)
    return error(Code::kCorrupt, "'{}' is '{}', not 16 hexadecimal digits", key, digits);
  return number;
}

Result<uint64_t> get_count(const Json& json, std::string_view key) {
  ASSIGN_OR_RETURN(const int64_t number, json.get_int(key));
  if (number < 0) return error(Code::kCorrupt, "'{}' is {}, it is 0 or above", key, number);
  return static_cast<uint64_t>(number);
}

/// Reads a list; an Error when it is missing.
Result<const Json::Array*> get_list(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  if (found == nullptr || !found->is_array())
    return error(Code::kCorrupt, "it has no list '{}'", key);
  return &found->as_array();
}

struct Parts {
  CutHead head;
  std::span<const std::byte> body;
  std::vector<Blob> blobs;
};

/// Two lists that most cuts do not have.
Status read_tenants(const Json& json, CutHead& head) {
  if (json.find("open_tenants") != nullptr) {
    ASSIGN_OR_RETURN(const auto* open, get_list(json, "open_tenants"));
    for (const Json& each : *open) {
      if (!each.is_integer() || each.as_int() < 0)
        return error(Code::kCorrupt, "'open_tenants' has an entry that is no slot");
      head.open_tenants.push_back(static_cast<uint32_t>(each.as_int()));
    }
  }
  if (json.find("slots") == nullptr) return ok();
  ASSIGN_OR_RETURN(const auto* slots, get_list(json, "slots"));
  for (const Json& each : *slots) {
    ASSIGN_OR_RETURN(const uint64_t slot, get_count(each, "tenant"));
    ASSIGN_OR_RETURN(const uint64_t number, get_count(each, "number"));
    ASSIGN_OR_RETURN(std::string name, each.get_string("name"));
    head.slots.push_back(
        {TenantSlot(static_cast<uint32_t>(slot)), static_cast<uint32_t>(number), std::move(name)});
  }
  return ok();
}

Result<Parts> parse(const MappedFile& mapped) {
  const auto all = mapped.bytes;
  const auto corrupt = [](std::string_view what) {
    return error(Code::kCorrupt, "it is no whole cut: {}", what);
  };
  if (all.size() < kPrefixBytes + sizeof(uint32_t)) return corrupt("it is too short");
  if (std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0)
    return corrupt("it does not begin like one");
  uint32_t version = 0, head_bytes = 0, crc = 0;
  std::memcpy(&version, all.data() + 8, sizeof version);
  std::memcpy(&head_bytes, all.data() + 12, sizeof head_bytes);
  if (version != kVersion)
    return error(Code::kInvalid, "it has version {}, this program reads {}", version, kVersion);
  const auto checked = all.first(all.size() - sizeof crc);
  std::memcpy(&crc, all.data() + checked.size(), sizeof crc);
  if (crc32c(checked) != crc) return corrupt("its checksum does not fit");
  auto left = checked.subspan(kPrefixBytes);
  if (left.size() < head_bytes) return corrupt("its head is longer than the file");
  ASSIGN_OR_RETURN(const Json json,
                   parse_json({reinterpret_cast<const char*>(left.data()), head_bytes}, "a cut"));
  left = left.subspan(head_bytes);
  Parts parts;
  CutHead& head = parts.head;
  ASSIGN_OR_RETURN(const std::string schema, json.get_string("schema"));
  if (schema != kCutSchema) return corrupt("its schema is '" + schema + "'");
  ASSIGN_OR_RETURN(head.run_id, get_hex(json, "run_id"));
  ASSIGN_OR_RETURN(head.program_version, json.get_string("program_version"));
  ASSIGN_OR_RETURN(head.state_hash, get_hex(json, "state_hash"));
  ASSIGN_OR_RETURN(head.process, json.get_string("process"));
  ASSIGN_OR_RETURN(const uint64_t incarnation, get_count(json, "incarnation"));
  head.incarnation = static_cast<uint32_t>(incarnation);
  ASSIGN_OR_RETURN(head.number, get_count(json, "number"));
  ASSIGN_OR_RETURN(const int64_t at_ns, json.get_int("at_ns"));
  head.at = Time::from_nanoseconds(at_ns);
  ASSIGN_OR_RETURN(head.segment, get_count(json, "segment"));
  ASSIGN_OR_RETURN(const auto* steps, get_list(json, "steps"));
  for (const Json& each : *steps) {
    ASSIGN_OR_RETURN(const uint64_t group, get_count(each, "group"));
    ASSIGN_OR_RETURN(const uint64_t step, get_count(each, "step"));
    head.steps.emplace_back(static_cast<uint32_t>(group), step);
  }
  ASSIGN_OR_RETURN(const auto* learners, get_list(json, "learner_steps"));
  for (const Json& each : *learners) {
    ASSIGN_OR_RETURN(const uint64_t tenant, get_count(each, "tenant"));
    ASSIGN_OR_RETURN(const uint64_t step, get_count(each, "step"));
    head.learner_steps.emplace_back(static_cast<uint32_t>(tenant), static_cast<int64_t>(step));
  }
  RETURN_IF_ERROR(read_tenants(json, head));
  ASSIGN_OR_RETURN(const auto* files, get_list(json, "line_files"));
  for (const Json& each : *files) {
    ASSIGN_OR_RETURN(std::string file, each.get_string("file"));
    ASSIGN_OR_RETURN(const uint64_t bytes, get_count(each, "bytes"));
    head.line_files.emplace_back(std::move(file), bytes);
  }
  ASSIGN_OR_RETURN(const uint64_t body_bytes, get_count(json, "body_bytes"));
  if (body_bytes > left.size()) return corrupt("its body is longer than the file");
  parts.body = left.first(body_bytes);
  left = left.subspan(body_bytes);
  ASSIGN_OR_RETURN(const auto* sizes, get_list(json, "blob_bytes"));
  for (const Json& each : *sizes) {
    const auto size = static_cast<uint64_t>(each.as_int());
    if (size > left.size()) return corrupt("its Blobs are longer than the file");
    parts.blobs.emplace_back(mapped.owner, left.first(size));
    left = left.subspan(size);
  }
  if (!left.empty()) return corrupt("bytes are left over");
  return parts;
}

Error named(Error fault, const fs::path& file) {
  return std::move(fault).while_doing(fmt::format("reading '{}'", file.filename().string()));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::vector<std::pair<uint32_t, int64_t>> checkpoints_needed(const CutHead& head) {
  auto needed = head.learner_steps;
  for (auto& [tenant, step] : needed)
    step += static_cast<int64_t>(std::ranges::count(head.open_tenants, tenant));
  return needed;
}

uint64_t state_hash(const Plan& plan) {
  uint64_t hash = stable_hash(wire::type_text<ProcessCut>());
  const auto add = [&hash](std::string_view text) { hash = stable_hash(text, hash); };
  for (const PlanGroup& group : plan.groups) add(group.name);
  for (const auto& process : plan.processes) add(process.name);
  for (const auto& tenant : plan.all_slots()) add(tenant.name);
  for (const PlanEdge& edge : plan.edges) add(edge.name);
  for (uint32_t i = 0; i < plan.instances.size(); ++i) {
    add(plan.instances[i].name);
    add(plan.contract_of(InstanceId(i)).state.schema);
  }
  return hash;
}

fs::path cut_path(const fs::path& folder, const CutHead& head) {
  return folder / fmt::format("{}.{}.{}.cut", head.process, head.incarnation, head.number);
}

Status write_cut(const fs::path& folder, const CutHead& head, const ProcessCut& cut) {
  MsgpackWriter writer;
  wire::write(writer, cut);
  const std::string json = head_json(head, writer.body().size(), writer.blobs()).dump();
  std::string prefix(kMagic);
  const auto head_bytes = static_cast<uint32_t>(json.size());
  prefix.append(reinterpret_cast<const char*>(&kVersion), sizeof kVersion);
  prefix.append(reinterpret_cast<const char*>(&head_bytes), sizeof head_bytes);
  std::vector<std::span<const std::byte>> parts = {bytes_of(prefix), bytes_of(json), writer.body()};
  for (const Blob& blob : writer.blobs()) parts.push_back(blob.bytes());
  uint32_t crc = 0;
  for (const auto& part : parts) crc = crc32c(part, crc);
  parts.push_back(std::as_bytes(std::span(&crc, 1)));
  const fs::path file = cut_path(folder, head);
  fs::path beside = file;
  beside += ".tmp";
  RETURN_IF_ERROR(write_file_synced(beside, parts));
  // It contains prompts, so only its owner may read it, like segments.
  std::error_code ignored;
  fs::permissions(beside, fs::perms::owner_read | fs::perms::owner_write, ignored);
  RETURN_IF_ERROR(system_files().rename(beside, file));
  return system_files().sync(folder);
}

Result<CutFile> read_cut(const fs::path& file) {
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  auto parts = parse(mapped);
  if (!parts.ok()) return named(parts.error(), file);
  CutFile read;
  read.head = std::move(parts->head);
  MsgpackReader reader(parts->body, parts->blobs);
  wire::read(reader, read.cut);
  if (const Status finished = reader.finish(); !finished.ok()) return named(finished.error(), file);
  return read;
}

Result<CutHead> read_cut_head(const fs::path& file) {
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  auto parts = parse(mapped);
  if (!parts.ok()) return named(parts.error(), file);
  return std::move(parts->head);
}

std::vector<fs::path> list_cuts(const fs::path& folder, const std::string& process) {
  std::vector<std::pair<Name, fs::path>> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    auto name = parse_name(entry.path());
    std::error_code failed;
    if (name && (process.empty() || name->process == process) && entry.is_regular_file(failed))
      found.emplace_back(std::move(*name), entry.path());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    const auto key = [](const Name& name) {
      return std::tuple(name.process, UINT32_MAX - name.incarnation, UINT64_MAX - name.number);
    };
    return key(a.first) < key(b.first);
  });
  std::vector<fs::path> files;
  for (auto& [name, path] : found) files.push_back(std::move(path));
  return files;
}

std::vector<fs::path> list_base_cuts(const fs::path& folder) {
  std::vector<fs::path> files = list_cuts(folder);
  std::erase_if(files, [](const fs::path& file) { return parse_name(file)->number != 0; });
  return files;
}

}  // namespace primerl
