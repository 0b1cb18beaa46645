#include "runtime/log/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace primerl {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

/// The message is already the end of a JSON object: `"level":...}`.
constexpr const char* kFilePattern = R"({"timestamp":"%Y-%m-%dT%H:%M:%S.%eZ",%v)";

}  // namespace

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

struct Log::Writer {
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> file;
  std::shared_ptr<spdlog::async_logger> talk;  // to stderr, for people
};

Result<std::unique_ptr<Log>> Log::open(const std::filesystem::path& file,
                                       const LogOptions& options) {
  // Created with access for its owner only, before spdlog opens it with its own mode: errors may
  // quote a prompt.
  const int made = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (made >= 0) ::close(made);
  try {
    auto writer = std::make_unique<Writer>();
    writer->pool = std::make_shared<spdlog::details::thread_pool>(options.lines_max, 1);
    auto to_file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    to_file->set_formatter(
        std::make_unique<spdlog::pattern_formatter>(kFilePattern, spdlog::pattern_time_type::utc));
    constexpr auto kOverflow = spdlog::async_overflow_policy::overrun_oldest;
    writer->file = std::make_shared<spdlog::async_logger>("file", to_file, writer->pool, kOverflow);
    writer->file->set_level(level_of(options.level));
    writer->file->flush_on(level_of(LogLevel::kInfo));
    auto to_stderr = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    to_stderr->set_pattern("%v");
    writer->talk =
        std::make_shared<spdlog::async_logger>("talk", to_stderr, writer->pool, kOverflow);
    writer->talk->set_level(level_of(options.stderr_level));
    // A full disk is reported once by the files with results; the log only loses lines.
    for (const auto& logger : {writer->file, writer->talk})
      logger->set_error_handler([](const std::string&) {});
    return std::unique_ptr<Log>(new Log(std::move(writer)));
  } catch (const std::exception& e) {
    return error(Code::kIo, "opening log '{}': {}", file.string(), e.what());
  }
}

Log::Log(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}

Log::~Log() {
  const uint64_t dropped = num_dropped();
  if (dropped > 0)
    write(LogLevel::kWarning, "log", fmt::format("{} log lines were dropped", dropped));
  writer_->file->flush();
}

namespace {

/// The end of a line's JSON object.
std::string json_tail(LogLevel level, std::string_view instance, std::string_view text) {
  Json line = Json::object();
  line.set("level", to_string(level)).set("instance", instance).set("message", text);
  return line.dump().substr(1);
}

std::string talk_text(LogLevel level, std::string_view instance, std::string_view text) {
  return fmt::format("{}: {}: {}", to_string(level), instance, text);
}

void write_through(const spdlog::async_logger& logger, LogLevel level, const std::string& text) {
  for (const auto& sink : logger.sinks()) {
    sink->log(spdlog::details::log_msg(logger.name(), level_of(level), text));
    sink->flush();
  }
}

}  // namespace

void Log::write_last(LogLevel level, std::string_view instance, std::string_view text) {
  try {
    write_through(*writer_->talk, level, talk_text(level, instance, text));
    write_through(*writer_->file, level, json_tail(level, instance, text));
  } catch (const std::exception&) {
    // On a full disk, stderr has the line.
  }
}

void Log::write(LogLevel level, std::string_view instance, std::string_view text) {
  const auto to = level_of(level);
  if (writer_->file->should_log(to)) writer_->file->log(to, json_tail(level, instance, text));
  if (writer_->talk->should_log(to)) writer_->talk->log(to, talk_text(level, instance, text));
}

uint64_t Log::num_dropped() const { return writer_->pool->overrun_counter(); }

}  // namespace primerl
