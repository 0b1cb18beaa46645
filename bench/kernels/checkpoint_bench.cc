// How much longer a step of a learner lasts after a checkpoint of 1 GB, on two cores: with the
// writer beside it, and when the step's thread writes (as before there was a writer).
//
//   checkpoint_bench [repetitions] [documents of 256 tokens in a step]
//
// Bound: weights and two moments of 84 M parameters are copied, 1.0 GB read and written: 0.2 s at
// 10 GB/s. The writer copies 1.0 GB to pieces, which the disk reads, and reads them back for the
// checksums, both past the page cache: 0.25 s of one core. 16 documents are 4,096 rows: 2.1 TFLOP,
// 12 s on two cores of 90 GFLOP/s. So the step after a checkpoint has 2 % more CPU time. A batch of
// 64 samples of 1,024 tokens has 16 times the rows, and 0.2 % more. The writer has the lowest
// priority: wall time of the step rises by the copy and by less than 1 %.
//
// Temporary files must be on a disk: a file system in memory has no way past its cache.
//
// Wall time depends on other processes, CPU time of the process does not: both are printed.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
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

Seconds median(std::vector<Seconds> all) {
  const auto middle = [&](double Seconds::*member) {
    std::ranges::sort(all, {}, member);
    return all[all.size() / 2].*member;
  };
  return {middle(&Seconds::wall), middle(&Seconds::cpu)};
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

void print(const char* what, Seconds of, Seconds plain) {
  std::printf("%-34s %8.3f s wall %8.3f s cpu  %+7.2f %% wall %+7.2f %% cpu\n", what, of.wall,
              of.cpu, 100 * (of.wall / plain.wall - 1), 100 * (of.cpu / plain.cpu - 1));
}

void run(int repetitions, int documents) {
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
  step();  // the first one allocates
  std::vector<Seconds> plain, beside, copies, former;
  for (int i = 0; i < repetitions; ++i) {
    plain.push_back(time_of(step));
    const auto target = store.begin(++number).value();
    Seconds copy;
    beside.push_back(time_of([&] {
      copy = time_of([&] {
        const LearnerSave save{kTenant, target, Time(), [&] { return commit(number); }};
        CHECK(learner->begin_save(save).ok(), "the copy failed");
      });
      step();
    }));
    copies.push_back(copy);
    while (true) {
      const auto ended = learner->end_of_save(kTenant, Time());
      if (!ended) {
        step();
        continue;
      }
      CHECK(ended->ok(), ended->error().text());
      break;
    }
    const auto again = store.begin(++number).value();
    former.push_back(time_of([&] {
      CHECK(learner->save(kTenant, again).ok() && commit(number).ok(), "the save failed");
      step();
    }));
  }
  print("a step", median(plain), median(plain));
  print("a step after begin_save()", median(beside), median(plain));
  print("a step after save() and commit()", median(former), median(plain));
  std::printf("%-34s %8.3f s wall %8.3f s cpu\n", "of it the copy", median(copies).wall,
              median(copies).cpu);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  primerl::bench::run(number(1, 3), number(2, 16));
  return 0;
}
