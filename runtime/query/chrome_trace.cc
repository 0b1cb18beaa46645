#include "runtime/query/chrome_trace.h"

#include <algorithm>
#include <tuple>

#include "runtime/query/request_spans.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/read/tenant_uses.h"

namespace primerl {
namespace {

// Upper estimate of the JSON of one step: its slice, arrow and counters, and its part of a request.
constexpr uint64_t kBytesPerStep = 900;
constexpr size_t kFlushBytes = size_t{64} << 10;

std::string json_text(std::string_view text) { return Json(text).dump(); }

/// One change of the number of messages that wait for a group.
struct Waiting {
  int64_t at_ns = 0;
  uint32_t group = 0;
  int32_t change = 0;
};

class ChromeWriter {
 public:
  ChromeWriter(const Trace& trace, const ChromeOptions& options,
               const std::function<bool(std::string_view)>& write)
      : trace_(trace), catalog_(trace.catalog()), options_(options), write_(write) {}

  Status run() {
    out_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    name_tracks();
    RequestSpans requests(trace_, {.from = options_.from, .to = options_.to},
                          [this](const auto& event) {
                            add(event);
                            flush(kFlushBytes);
                          });
    trace_.visit(options_.from, options_.to, [&](const TraceStep& step) {
      if (options_.filter && options_.filter->matches(trace_, step) != StepFilter::Verdict::kYes)
        return true;
      add_slice(step);
      if (step.kind == StepKind::kMessage) add_arrow(step);
      requests.see(step);
      return flush(kFlushBytes);
    });
    requests.finish();
    add_queues();
    add_versions();
    out_ += fmt::format("\n],\"otherData\":{{\"graph\":{},\"complete\":{}}}}}\n",
                        json_text(catalog_.graph_name), trace_.is_complete());
    flush(0);
    if (is_full_) return error(Code::kIo, "the export could not be written to its end");
    return ok();
  }

 private:
  /// The track of a work call is that of the group's first instance.
  uint32_t track_of(const TraceStep& step) const {
    if (!step.instance.is_none()) return step.instance.value;
    const auto& instances = catalog_.groups[step.group.index()].instances;
    return instances.empty() ? 0 : instances.front();
  }
  uint32_t process_of(uint32_t group) const { return catalog_.groups[group].process + 1; }
  std::string micros(int64_t ns) const {
    return fmt::format("{:.3f}", static_cast<double>(ns - catalog_.zero_ns) * 1e-3);
  }
  bool flush(size_t above) {
    if (out_.size() <= above || is_full_) return !is_full_;
    is_full_ = !write_(out_);
    out_.clear();
    return !is_full_;
  }
  void add(const std::string& event) {
    if (!is_first_) out_ += ",\n";
    is_first_ = false;
    out_ += event;
  }

  void name_tracks() {
    for (uint32_t p = 0; p < catalog_.processes.size(); ++p)
      add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", p + 1,
                      json_text(catalog_.processes[p])));
    for (uint32_t i = 0; i < catalog_.instances.size(); ++i)
      add(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                      process_of(catalog_.instances[i].group), i + 1,
                      json_text(catalog_.instances[i].name)));
  }
  void add_slice(const TraceStep& step) {
    const bool is_message = step.kind == StepKind::kMessage;
    const std::string name =
        is_message ? catalog_.links[step.link.index()].input : input_text(trace_, step);
    const std::string category =
        is_message ? catalog_.types[step.type].name : std::string(to_string(step.kind));
    std::string facts = "\"step\":" + json_text(step_name(trace_, step));
    if (!step.cause.is_none()) facts += ",\"cause\":" + json_text(step_name(catalog_, step.cause));
    if (step.is_failed()) facts += ",\"failed\":true";
    add(fmt::format(
        R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
        json_text(name), json_text(category), process_of(step.group.value), track_of(step) + 1,
        micros(step.began.to_nanoseconds()),
        std::max<int64_t>(step.duration.to_nanoseconds() / 1000, 1), facts));
  }
  /// From the slice that emitted the message, if it is known, to the slice of this step.
  void add_arrow(const TraceStep& step) {
    const auto& link = catalog_.links[step.link.index()];
    const uint32_t sender_group = catalog_.instances[link.sender].group;
    std::optional<TraceStep> from;
    const auto stored = trace_.payload(key_of(step));
    if (stored.ok() && !stored->sender_group.is_none())
      from = trace_.step(stored->sender_group, stored->step);
    else if (!step.cause.is_none() &&
             catalog_.instances[step.cause.instance.index()].group == sender_group)
      from = trace_.step(GroupId(sender_group), step.cause.step);
    if (!from || from->began > step.began) return;
    const int64_t sent_ns = from->began.to_nanoseconds() + from->duration.to_nanoseconds();
    const int64_t began_ns = step.began.to_nanoseconds();
    waiting_.push_back({std::min(sent_ns, began_ns), step.group.value, 1});
    waiting_.push_back({began_ns, step.group.value, -1});
    const uint64_t id = ++num_arrows_;
    const std::string name = json_text(link.output);
    add(fmt::format(R"({{"ph":"s","id":{},"name":{},"cat":"flow","pid":{},"tid":{},"ts":{}}})", id,
                    name, process_of(sender_group), track_of(*from) + 1,
                    micros(from->began.to_nanoseconds())));
    add(fmt::format(
        R"({{"ph":"f","bp":"e","id":{},"name":{},"cat":"flow","pid":{},"tid":{},"ts":{}}})", id,
        name, process_of(step.group.value), track_of(step) + 1, micros(began_ns)));
  }
  void add_queues() {
    // At equal times emissions come before deliveries, so that the count is never too small.
    std::ranges::sort(waiting_, [](const Waiting& a, const Waiting& b) {
      return std::tuple(a.group, a.at_ns, -a.change) < std::tuple(b.group, b.at_ns, -b.change);
    });
    int64_t depth = 0;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const Waiting& change = waiting_[i];
      if (i == 0 || waiting_[i - 1].group != change.group) depth = 0;
      depth += change.change;
      const bool is_last_of_moment = i + 1 == waiting_.size() ||
                                     waiting_[i + 1].group != change.group ||
                                     waiting_[i + 1].at_ns != change.at_ns;
      if (!is_last_of_moment) continue;
      add(fmt::format(R"({{"ph":"C","name":{},"pid":{},"ts":{},"args":{{"messages":{}}}}})",
                      json_text("waiting " + catalog_.groups[change.group].name),
                      process_of(change.group), micros(change.at_ns), depth));
      if (!flush(kFlushBytes)) return;
    }
  }
  void add_versions() {
    for (const VersionMark& mark : trace_.summary().versions) {
      const Time at = Time::from_nanoseconds(mark.at_ns);
      if (at < options_.from || at > options_.to) continue;
      add(fmt::format(
          R"({{"ph":"C","name":{},"pid":1,"ts":{},"args":{{"version":{}}}}})",
          json_text("policy " + trace_.tenants().label(TenantSlot(mark.tenant), mark.tenancy)),
          micros(mark.at_ns), mark.version));
    }
  }

  const Trace& trace_;
  const TraceCatalog& catalog_;
  const ChromeOptions& options_;
  const std::function<bool(std::string_view)>& write_;
  std::string out_;
  std::vector<Waiting> waiting_;
  uint64_t num_arrows_ = 0;
  bool is_first_ = true;
  bool is_full_ = false;
};

}  // namespace

Status write_chrome_trace(const Trace& trace, const ChromeOptions& options,
                          const std::function<bool(std::string_view)>& write) {
  const uint64_t estimate = trace.num_steps() * kBytesPerStep;
  if (!options.has_range && estimate > kChromeBytesMax)
    return error(Code::kExhausted, "{} steps would be about {} of JSON, above the limit of {}",
                 trace.num_steps(), rounded_bytes(estimate), rounded_bytes(kChromeBytesMax))
        .note("choose a range with --from and --to, in seconds since the start of the run");
  return ChromeWriter(trace, options, write).run();
}

}  // namespace primerl
