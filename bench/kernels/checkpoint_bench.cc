// How much longer a step of a learner lasts after a checkpoint of 1 GB, on two cores: with the
// writer beside it, and when the step's thread writes (as before there was a writer).
//
//   checkpoint_bench [repetitions] [documents of 256 tokens in a step] [seconds at most]
//
// Bound: weights and two moments of 84 M parameters are copied, 1.0 GB read and written: 0.2 s at
// 10 GB/s. The writer copies 1.0 GB to pieces, which the disk reads, and reads them back for the
// checksums, both past the page cache: 0.25 s of one core. 16 documents are 4,096 rows: 2.1 TFLOP,
// 12 s on two cores of 90 GFLOP/s. So the step after a checkpoint has 2 % more CPU time. A batch of
// 64 samples of 1,024 tokens has 16 times the rows, and 0.2 % more. The writer has 0.4 % of a busy
// core: wall time of the step rises by the copy and by less than 1 %.
//
// Temporary files must be on a disk: a file system in memory has no way past its cache.
//
// Each repetition times one step of each kind, one after the other, and is printed when it ends.
// After the seconds no further repetition begins. Wall time depends on other processes, CPU time of
// the process does not: both are printed. The delay is that of each pair of steps.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/kernels/shapes.h"
#include "runtime/store/checkpoint.h"
#include "runtime/worker/writing_learner.h"

namespace primerl::bench {
namespace {

constexpr Shape kOneGigabyte = {"84m", 768, 11, 2304, 12, 6, 64, 8192};
constexpr TenantSlot kTenant(0);

struct Seconds {
  double wall = 0, cpu = 0;
};

Seconds now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(wall).count(), of(usage.ru_utime) + of(usage.ru_stime)};
}

template <class Body>
Seconds time_of(const Body& body) {
  const Seconds begin = now();
  body();
  const Seconds end = now();
  return {end.wall - begin.wall, end.cpu - begin.cpu};
}

/// "12.3 [11.9, 12.8]": median, least and greatest.
std::string spread(std::vector<double> all) {
  std::ranges::sort(all);
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", all[all.size() / 2], all.front(), all.back());
}

TrainBatch make_batch(int documents) {
  TrainBatch batch;
  batch.tenant = kTenant;
  batch.loss = LossKind::kCrossEntropy;
  for (int i = 0; i < documents; ++i) {
    TrainSample& sample = batch.samples.emplace_back();
    for (int t = 0; t < 256; ++t) {
      sample.tokens.push_back(2 + (i * 131 + t * 7) % 8000);
      sample.loss_mask.push_back(t > 0 ? 1 : 0);
    }
  }
  return batch;
}

/// The times of one kind of step, by repetition.
struct Kind {
  const char* name;
  std::vector<Seconds> times{};
};

void print(const Kind& kind, const Kind& plain) {
  const auto values = [&](double Seconds::*member, bool is_delay) {
    std::vector<double> all;
    for (size_t i = 0; i < kind.times.size(); ++i)
      all.push_back(is_delay ? 100 * (kind.times[i].*member / plain.times[i].*member - 1)
                             : kind.times[i].*member);
    return spread(std::move(all));
  };
  fmt::print("{:32} wall {} s, cpu {} s\n", kind.name, values(&Seconds::wall, false),
             values(&Seconds::cpu, false));
  if (&kind != &plain)
    fmt::print("{:32} wall {} %, cpu {} %\n", "  longer by", values(&Seconds::wall, true),
               values(&Seconds::cpu, true));
}

void run(int repetitions, int documents, double seconds_max) {
  const auto folder = std::filesystem::temp_directory_path() / "primerl-bench-checkpoints";
  LearnerOptions options;
  options.threads = 2;
  const auto learner = make_writing_learner(make_learner(make_config(kOneGigabyte), options));
  CheckpointStore store(system_files(), folder, "main", {.last = 1});
  const TrainBatch batch = make_batch(documents);
  const auto step = [&] {
    const auto report = learner->step(batch, [] { return false; });
    CHECK(report.ok() && !report->skipped, "the step failed");
  };
  const auto commit = [&store](int64_t number) {
    return store.commit(number, Json::object().set("version", number));
  };
  int64_t number = 0;
  const auto begin_save = [&] {
    const auto target = store.begin(++number).value();
    const LearnerSave save{kTenant, target, Time(), [&] { return commit(number); }};
    CHECK(learner->begin_save(save).ok(), "the copy failed");
  };
  // No steps meanwhile: on two busy cores the writer would need a minute for each checkpoint.
  const auto wait_for_writer = [&] {
    std::optional<Status> ended;
    while (!(ended = learner->end_of_save(kTenant, Time())))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(ended->ok(), ended->error().text());
  };
  const Seconds begin = now();
  Kind plain{"a step"}, beside{"a step after begin_save()"};
  Kind former{"a step after save() and commit()"};
  Kind copy{"the copy of begin_save()"}, rest{"the writer after that step"};
  step();  // the first one allocates, and so does the first copy
  begin_save();
  wait_for_writer();
  fmt::print("ready after {:.1f} s\n", now().wall - begin.wall);
  std::fflush(stdout);
  for (int i = 0; i < repetitions && (i == 0 || now().wall - begin.wall < seconds_max); ++i) {
    plain.times.push_back(time_of(step));
    beside.times.push_back(time_of([&] {
      copy.times.push_back(time_of(begin_save));
      step();
    }));
    rest.times.push_back(time_of(wait_for_writer));
    const auto again = store.begin(++number).value();
    former.times.push_back(time_of([&] {
      CHECK(learner->save(kTenant, again).ok() && commit(number).ok(), "the save failed");
      step();
    }));
    fmt::print("{}: a step {:.3f} s, after begin_save() {:.3f} s, after save() {:.3f} s\n", i + 1,
               plain.times.back().wall, beside.times.back().wall, former.times.back().wall);
    std::fflush(stdout);
  }
  for (const Kind* kind : {&plain, &beside, &former}) print(*kind, plain);
  for (const Kind* kind : {&copy, &rest}) print(*kind, *kind);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  primerl::bench::run(number(1, 3), number(2, 16), number(3, 300));
  return 0;
}
