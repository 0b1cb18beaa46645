#include "runtime/replay/replay_fixture.h"

#include <algorithm>
#include <cctype>

#include "graph/base/files.h"
#include "runtime/replay/excerpt.h"
#include "runtime/replay/fixture_text.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kFileBytesMax = uintmax_t{1} << 20;

/// Files of a tokenizer; config.json is needed by the graph check.
constexpr std::string_view kTokenizerFiles[] = {"generation_config.json", "tokenizer.json",
                                                "tokenizer_config.json", "special_tokens_map.json"};

bool is_computed(const PlanResource& resource, ReplayDepth depth) {
  if (resource.kind == "engine") return depth == ReplayDepth::kFull;
  if (resource.kind == "learner") return depth != ReplayDepth::kControl;
  return false;
}

/// The depth at which one actor group can be replayed without weights of other groups.
std::string depth_for(const Plan& plan, GroupId group, ReplayDepth depth) {
  for (int32_t index : plan.group(group).resources) {
    const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
    // An engine needs the weights of a learner, which is in another actor group.
    if (resource.kind != "learner" || resource.backend != "scripted") continue;
    if (is_computed(resource, depth)) return "learner";
  }
  return "control";
}

Result<FixtureFacts> choose(const ReplaySession& session, const ReplayReport& report,
                            std::optional<GroupId> chosen) {
  FixtureFacts facts;
  if (!report.is_identical()) {
    facts.divergence = report.divergences.front();
    facts.group = facts.divergence->group;
    facts.last_step = facts.divergence->step;
    if (facts.divergence->kind == DivergenceKind::kMissing ||
        facts.divergence->kind == DivergenceKind::kUnreadable)
      return error(Code::kInvalid, "what differs lies in the record, no test of an actor shows it")
          .note(facts.divergence->what);
  } else if (chosen) {
    facts.group = *chosen;
    facts.last_step = report.num_steps[chosen->index()];
    if (facts.last_step == 0)
      return error(Code::kInvalid, "'{}' took no step: there is nothing to test",
                   session.plan->group(*chosen).name);
  } else {
    return error(Code::kInvalid, "nothing diverged: say what to test with --node NAME")
        .note("and up to which step with --stop-at STEP");
  }
  facts.host_name = session.plan->group(facts.group).name;
  facts.depth = depth_for(*session.plan, facts.group, session.depth);
  facts.graph_name = session.trace->catalog().graph_name;
  facts.run_id = session.trace->catalog().run_id;
  facts.program_version = session.trace->catalog().program_version;
  return facts;
}

Status copy_into(const fs::path& file, const fs::path& folder) {
  std::error_code failed;
  if (const auto size = fs::file_size(file, failed); !failed && size > kFileBytesMax)
    return error(Code::kExhausted, "'{}' has {} bytes; a fixture takes files of at most {}",
                 file.string(), size, kFileBytesMax);
  ASSIGN_OR_RETURN(const std::string bytes, read_text_file(file));
  RETURN_IF_ERROR(system_files().make_folder(folder));
  return system_files().write_file(folder / file.filename(), bytes);
}

/// Copies those files of a resumed run's checkpoints that the depth of the fixture reads: the
/// manifest, whose state is enough for actors, and all files if a learner is computed. Returns
/// their paths in the fixture.
Result<std::vector<std::string>> copy_checkpoints(const ReplaySession& session,
                                                  const std::string& depth,
                                                  const fs::path& folder) {
  std::vector<std::string> places;
  for (size_t slot = 0; slot < session.trace->catalog().resumed_from.size(); ++slot) {
    if (session.trace->catalog().resumed_from[slot] == kNoCheckpoint) {
      places.emplace_back(kNoCheckpoint);
      continue;
    }
    const fs::path from =
        session.trace->excerpt()
            ? session.trace->folder().parent_path() / session.trace->catalog().resumed_from[slot]
            : fs::path(session.trace->catalog().resumed_from[slot]);
    const fs::path place =
        fs::path("checkpoints") / session.plan->tenants[slot].name / from.filename();
    RETURN_IF_ERROR(system_files().make_folder(folder / place));
    ASSIGN_OR_RETURN(const std::string text, read_text_file(from / "manifest.json"));
    ASSIGN_OR_RETURN(Json manifest, parse_json(text, "manifest.json"));
    if (depth == "control") manifest.set("files", Json::array());
    const Json* files = manifest.find("files");
    for (size_t i = 0; files != nullptr && i < files->as_array().size(); ++i) {
      ASSIGN_OR_RETURN(const std::string path, files->as_array()[i].get_string("path"));
      if (Status copied = copy_into(from / path, folder / place / fs::path(path).parent_path());
          !copied.ok())
        return std::move(copied)
            .error()
            .while_doing("taking the checkpoint that the run began from along")
            .note("with --depth control its numbers come from the record, and no file is needed");
    }
    RETURN_IF_ERROR(
        system_files().write_file(folder / place / "manifest.json", manifest_text(manifest)));
    places.push_back(place.string());
  }
  return places;
}

/// The text of the graph, with the paths of its files in the fixture.
class GraphFiles {
 public:
  GraphFiles(const Plan& plan, GroupId group, fs::path folder)
      : plan_(plan), group_(group), folder_(std::move(folder)), text_(plan.resolved_toml) {}

  Status copy() {
    for (size_t i = 0; i < plan_.models.size(); ++i)
      RETURN_IF_ERROR(copy_model(plan_.models[i], static_cast<int32_t>(i)));
    for (const PlanNode& node : plan_.nodes)
      RETURN_IF_ERROR(
          copy_files(node.contract->options, node.options.get(), node.name, is_played(node)));
    for (const Tenant& tenant : plan_.tenants) {
      for (size_t i = 0; i < tenant.num_environments(); ++i) {
        const TenantEnvironment& chosen = tenant.in_environment(i).environment;
        if (chosen.contract == nullptr) continue;
        const std::string name =
            tenant.mix.empty() ? "environment" : fmt::format("environments.{}", i);
        RETURN_IF_ERROR(copy_files(chosen.contract->options, chosen.options.get(),
                                   fmt::format("{}.{}", tenant.name, name), true));
      }
      for (const TenantReward& chosen : tenant.rewards)
        if (chosen.contract != nullptr)
          RETURN_IF_ERROR(copy_files(chosen.contract->options, chosen.options.get(),
                                     tenant.name + ".reward." + chosen.label, true));
    }
    return ok();
  }
  std::string take_text() { return std::move(text_); }

 private:
  Status copy_model(const PlanModel& model, int32_t index) {
    const fs::path to = fs::path("model") / model.name;
    RETURN_IF_ERROR(copy_into(fs::path(model.path) / "config.json", folder_ / to));
    if (uses_tokenizer(index))
      for (const std::string_view name : kTokenizerFiles)
        if (fs::exists(fs::path(model.path) / name))
          RETURN_IF_ERROR(copy_into(fs::path(model.path) / name, folder_ / to));
    replace(model.path, to);
    return ok();
  }

  bool uses_tokenizer(int32_t model) const {
    for (const InstanceId id : plan_.group(group_).instances)
      for (const int32_t index : plan_.instance(id).resources) {
        if (index < 0) continue;
        const PlanResource& resource = plan_.resources[static_cast<size_t>(index)];
        if (resource.kind == "tokenizer" && resource.model == model) return true;
      }
    return false;
  }

  bool is_played(const PlanNode& node) const {
    return std::any_of(node.instances.begin(), node.instances.end(),
                       [&](InstanceId id) { return plan_.instance(id).group == group_; });
  }

  Status copy_files(const OptionSet& options, const void* bound, const std::string& owner,
                    bool is_read) {
    for (const auto& field : options.fields) {
      if (field.constraint.refers.kind != "file") continue;
      // The options are constant; the accessors are used only for reading.
      auto* options_read = const_cast<void*>(bound);
      const std::vector<std::string> names = field.references
                                                 ? *field.references(options_read)
                                                 : std::vector{*field.reference(options_read)};
      for (size_t i = 0; i < names.size(); ++i)
        if (!names[i].empty())
          RETURN_IF_ERROR(copy_file(fs::path("files") / owner / field.name /
                                        (field.references ? std::to_string(i) : std::string()),
                                    names[i], is_read));
    }
    return ok();
  }

  Status copy_file(const fs::path& to, const std::string& name, bool is_read) {
    if (is_read) {
      RETURN_IF_ERROR(copy_into(name, folder_ / to));
    } else {
      // The graph check needs a file, but no code reads it.
      RETURN_IF_ERROR(system_files().make_folder(folder_ / to));
      RETURN_IF_ERROR(
          system_files().write_file(folder_ / to / fs::path(name).filename(), std::string_view()));
    }
    replace(name, to / fs::path(name).filename());
    return ok();
  }

  void replace(const std::string& absolute, const fs::path& relative) {
    const std::string from = Json(absolute).dump(), to = Json(relative.string()).dump();
    for (auto at = text_.find(from); at != std::string::npos; at = text_.find(from, at + to.size()))
      text_.replace(at, from.size(), to);
  }

  const Plan& plan_;
  const GroupId group_;
  const fs::path folder_;
  std::string text_;
};

/// Replays once more up to the step and collects the inputs of the actor group.
Status write_excerpt(const ReplaySession& session, ReplaySetup setup, const FixtureFacts& facts,
                     const fs::path& folder) {
  GraphFiles files(*session.plan, facts.group, folder);
  RETURN_IF_ERROR(files.copy());
  ASSIGN_OR_RETURN(auto checkpoints, copy_checkpoints(session, facts.depth, folder));
  const auto wiring = make_wiring(*session.plan);
  ExcerptCollector collector(*session.trace, *wiring, facts.group, facts.last_step);
  ReplayHostServices quiet("", {});
  quiet.resume_from(session.process_services->resume_points());
  RETURN_IF_ERROR(quiet.open());
  setup.process_services = &quiet;
  setup.watcher = &collector;
  setup.options.num_threads = 1;
  setup.options.stop_group = facts.group;
  setup.options.stop_step = facts.last_step;
  ASSIGN_OR_RETURN(const auto replay, Replay::make(std::move(setup)));
  RETURN_IF_ERROR(replay->run());
  return collector.write(folder / "trace", {files.take_text(), std::move(checkpoints)});
}

Status write_texts(const FixtureFacts& facts, const fs::path& folder) {
  FileOps& files = system_files();
  RETURN_IF_ERROR(files.write_file(folder / (facts.test_name() + ".cc"), test_text(facts)));
  RETURN_IF_ERROR(files.write_file(folder / "README.md", readme_text(facts)));
  // Index files are written when the trace is opened.
  return files.write_file(folder / "trace" / ".gitignore", "*.index\n");
}

bool shows_the_same(const FixtureFacts& facts, const PlayedFixture& played) {
  if (!facts.divergence) return played.is_identical;
  const auto& then = *facts.divergence;
  return played.first && played.first->group == then.group && played.first->step == then.step &&
         played.first->kind == then.kind && played.first->what == then.what;
}

Status check_written(const FixtureFacts& facts, const fs::path& folder) {
  ASSIGN_OR_RETURN(const PlayedFixture played, play_fixture(folder, facts.depth));
  if (shows_the_same(facts, played)) return ok();
  return error(Code::kInvalid, "'{}' alone does not show what the replay shows", facts.host_name)
      .note(facts.divergence ? "the replay: " + facts.divergence->what : "the replay: identical")
      .note("alone: " + (played.is_identical ? std::string("identical") : played.text))
      .note(
          "numbers that an engine or a learner computes need its weights: no small test has them");
}

Status write_all(const ReplaySession& session, const ReplaySetup& setup, const FixtureFacts& facts,
                 const fs::path& folder) {
  RETURN_IF_ERROR(write_excerpt(session, setup, facts, folder));
  RETURN_IF_ERROR(write_texts(facts, folder));
  return check_written(facts, folder);
}

/// Size of all files; removes the index files of the opened trace first.
uint64_t count_bytes(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> indices;
  for (const auto& entry : fs::directory_iterator(folder / "trace", ignored))
    if (entry.path().extension() == ".index") indices.push_back(entry.path());
  for (const auto& index : indices) fs::remove(index, ignored);
  uint64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored)) sum += entry.file_size(ignored);
  return sum;
}

}  // namespace

Result<WrittenFixture> write_fixture(const ReplaySession& session, const ReplaySetup& setup,
                                     const ReplayReport& report, std::optional<GroupId> chosen,
                                     const fs::path& folder) {
  ASSIGN_OR_RETURN(const FixtureFacts facts, choose(session, report, chosen));
  std::error_code failed;
  if (fs::exists(folder, failed) && !fs::is_empty(folder, failed))
    return error(Code::kExists, "'{}' is there already", folder.string())
        .note("a fixture is never written over: choose another folder");
  RETURN_IF_ERROR(system_files().make_folder(folder));
  if (Status written = write_all(session, setup, facts, folder); !written.ok()) {
    (void)system_files().remove_all(folder);
    return std::move(written).error().while_doing("writing the fixture");
  }
  WrittenFixture fixture;
  fixture.folder = folder;
  fixture.test_file = folder / (facts.test_name() + ".cc");
  fixture.group = facts.host_name;
  fixture.last_step = facts.last_step;
  fixture.depth = facts.depth;
  fixture.num_bytes = count_bytes(folder);
  return fixture;
}

Result<PlayedFixture> play_fixture(const fs::path& folder, const std::string& depth) {
  ASSIGN_OR_RETURN(const ReplaySession session,
                   open_replay({.run = folder.string(), .depth = depth}));
  const auto excerpt = session.trace->excerpt();
  if (!excerpt) return error(Code::kInvalid, "'{}' is no fixture", folder.string());
  ASSIGN_OR_RETURN(const auto replay, Replay::make(session.setup(1)));
  ASSIGN_OR_RETURN(const ReplayReport report, replay->run());
  PlayedFixture played;
  played.is_identical =
      report.is_identical() && report.num_steps[excerpt->group.index()] == excerpt->last_step;
  if (!report.is_identical()) {
    played.first = report.divergences.front();
    played.text = divergence_text(*session.plan, *played.first);
  } else if (!played.is_identical) {
    played.text = fmt::format("only {} of {} steps were played",
                              report.num_steps[excerpt->group.index()], excerpt->last_step);
  }
  return played;
}

}  // namespace primerl
