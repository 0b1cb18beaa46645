#include "runtime/outside/verifiers/server_process.h"

#include <utility>

namespace primerl {
namespace {

OutsidePool pool_of_processes(OutsidePool pool) {
  if (!pool.verifiers.address.empty()) pool.num_workers = 1;
  return pool;
}

PoolWorkers::Hooks hooks_of(bool starts_server, ServerProcesses::Hooks hooks) {
  PoolWorkers::Hooks made;
  made.on_hello = [starts_server, on_start = std::move(hooks.on_start)](
                      size_t process, const Json& line, Time now) -> Status {
    ASSIGN_OR_RETURN(const std::string address, ServerProcesses::read_address(line, starts_server));
    if (starts_server) on_start(process, address, now);
    return ok();
  };
  if (starts_server) made.on_end = std::move(hooks.on_end);
  return made;
}

}  // namespace

ServerProcesses::ServerProcesses(const OutsidePool& pool, PoolWorkers::OnAnswer on_answer,
                                 PoolWorkers::Log log, Hooks hooks)
    : workers_(pool_of_processes(pool), std::move(on_answer), std::move(log),
               hooks_of(pool.verifiers.address.empty(), std::move(hooks))) {}

Result<std::string> ServerProcesses::read_address(const Json& line, bool starts_server) {
  if (line.find("address") == nullptr && !starts_server) return std::string();
  ASSIGN_OR_RETURN(std::string address, line.get_string("address"));
  if (starts_server && address.empty())
    return error(Code::kInvalid,
                 "'address' is empty: a process that starts a server says where "
                 "the server listens");
  return address;
}

}  // namespace primerl
