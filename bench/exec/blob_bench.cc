// Bound: 256 rollouts of 32k tokens with routed experts [32k, 48, 8] uint8 are 12.6 MB each, 3.2 GB
// in all. Each is written once (a memcpy, 5 GB/s cold) by the thread that creates it, and read once
// by the other process. The I/O thread of a link sends 32 bytes for each, about a microsecond.
// Target: >= 1 GB/s from process to process, no iteration of the I/O thread over 1 ms.
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "graph/base/assert.h"
#include "graph/base/crc32c.h"
#include "runtime/transport/shm_blobs.h"

namespace primerl {
namespace {

constexpr size_t kBlobs = 256;
constexpr size_t kBlobBytes = size_t{32 * 1024} * 48 * 8;
constexpr size_t kPoolBytes = 32 * kBlobBytes;  // 32 of the 256 Blobs in flight

/// The receiver's measurements for one Blob.
struct Answer {
  uint32_t check = 0;
  double take_us = 0;  // of its I/O thread
};

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// CPU time of this thread: the cost of an iteration, independent of the scheduler.
double cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

template <class T>
bool read_all(int from, T& value) {
  return ::read(from, &value, sizeof value) == sizeof value;
}

template <class T>
void write_all(int to, const T& value) {
  CHECK(::write(to, &value, sizeof value) == sizeof value, "the other process is gone");
}

/// Receives references, reads every byte that they name, answers.
int receive() {
  ShmBlobAddress address;
  if (!read_all(STDIN_FILENO, address)) return 1;
  const auto reader = ShmBlobReader::open(address);
  if (!reader.ok()) return 1;
  ShmBlobRef ref;
  while (read_all(STDIN_FILENO, ref)) {
    Answer answer;
    const double begin = now_us();
    const auto blob = (*reader)->take(ref);
    answer.take_us = now_us() - begin;
    if (!blob.ok()) return 1;
    answer.check = crc32c(blob->bytes());
    write_all(STDOUT_FILENO, answer);
  }
  return 0;
}

struct Receiver {
  Receiver() {
    int to[2], from[2];
    CHECK(::pipe(to) == 0 && ::pipe(from) == 0, "no pipes");
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int one : {to[0], to[1], from[0], from[1]}) ::close(one);
      ::execl("/proc/self/exe", "runtime_blob_bench", "--receive", nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    input = to[1];
    output = from[0];
  }
  ~Receiver() {
    ::close(input);
    ::close(output);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  pid_t pid = -1;
  int input = -1, output = -1;
};

/// A queue of references from the thread that fills Blobs to the I/O thread.
class Outbox {
 public:
  void put(ShmBlobRef ref) {
    const std::lock_guard lock(mutex_);
    refs_.push_back(ref);
    filled_.notify_one();
  }
  ShmBlobRef take() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !refs_.empty(); });
    const ShmBlobRef ref = refs_.front();
    refs_.pop_front();
    return ref;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<ShmBlobRef> refs_;
};

void rollouts_with_experts(benchmark::State& state) {
  const auto pool = ShmBlobPool::make(kPoolBytes).value();
  const Receiver receiver;
  write_all(receiver.input, pool->address());
  const std::vector<std::byte> experts(kBlobBytes, std::byte{7});
  const uint32_t check = crc32c(experts);
  double send_us_max = 0, send_cpu_us_max = 0, take_us_max = 0;
  for (auto _ : state) {
    Outbox outbox;
    std::thread io([&] {
      for (size_t i = 0; i < kBlobs; ++i) {
        const ShmBlobRef ref = outbox.take();
        const double begin = now_us(), cpu_begin = cpu_us();
        write_all(receiver.input, ref);
        send_cpu_us_max = std::max(send_cpu_us_max, cpu_us() - cpu_begin);
        send_us_max = std::max(send_us_max, now_us() - begin);
      }
    });
    std::thread answers([&] {
      Answer answer;
      for (size_t i = 0; i < kBlobs; ++i) {
        CHECK(read_all(receiver.output, answer) && answer.check == check, "a Blob was changed");
        take_us_max = std::max(take_us_max, answer.take_us);
      }
    });
    for (size_t i = 0; i < kBlobs; ++i) {
      auto ref = pool->put(experts);
      while (!ref.ok()) {  // the pool is full; a link would wait for credit
        std::this_thread::yield();
        ref = pool->put(experts);
      }
      outbox.put(*ref);
    }
    io.join();
    answers.join();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBlobs * kBlobBytes));
  state.counters["send_us_max"] = send_us_max;
  state.counters["send_cpu_us_max"] = send_cpu_us_max;
  state.counters["take_us_max"] = take_us_max;
}

void one_memcpy(benchmark::State& state) {
  std::vector<std::byte> from(kPoolBytes, std::byte{7}), to(kPoolBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), to.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPoolBytes));
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--receive") return primerl::receive();
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("rollouts_with_experts", primerl::rollouts_with_experts)
      ->UseRealTime()
      ->Iterations(3)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("one_memcpy", primerl::one_memcpy)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
