/// A data set is an environment: each row is a task of one turn.
///
///   row          {"prompt": "2 + 3 = ", "answer": "5"}
///   or           {"messages": [{"role": "user", "content": "2 + 3?"}], "answer": "5"}
///   action       the policy's answer; it ends the trajectory
///
/// Without a reward of the tenant, the reward is 1 if the action is the row's answer, spaces around
/// it left out, else 0. Each epoch of a file has its own order. With several files, `weights` says
/// how many tasks of each file follow each other in a cycle. An evaluation gives the rows in the
/// holdout, or all rows if there is none. Task n is a function of n and the
/// options, so a resumed run continues with the same rows. All rows are read when the environment
/// is made; a fault names file, line and column.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/env/environment.h"

namespace primerl {

struct DatasetOptions {
  std::string file = {};                       // JSONL or CSV
  std::string file_sha256 = {};                // of its content; "" = any
  int64_t file_bytes = -1;                     // its size; -1 = any
  std::vector<std::string> files = {};         // several, instead of `file`
  std::vector<std::string> files_sha256 = {};  // of each
  std::vector<int64_t> files_bytes = {};       // of each
  std::vector<int64_t> weights = {};           // of each of `files`; empty = all 1
  std::string format = "auto";                 // "auto", "jsonl", "csv"
  std::string prompt = "prompt";               // name of the field that the policy reads
  std::string messages = {};      // name of the field with a conversation; "" = `prompt`
  std::string tools = {};         // name of the field with tools; "" = none
  std::string answer = "answer";  // name of the field that rewards read; "" = none
  std::string system = {};        // the first message, or text before each prompt
  bool shuffle = true;            // each epoch in an order of its own
  int64_t seed = 0;               // of the order and of the rows in the holdout
  int64_t holdout = 0;            // rows of each file that do not train
  std::string split = "train";    // "train" or "holdout"
  int64_t rows_max = 10'000'000;  // of each file
  int64_t row_bytes_max = int64_t{1} << 20;
};

inline constexpr size_t kDataFilesMax = 64;
inline constexpr int64_t kDataWeightMax = 1000;

OptionSet dataset_options();
/// Reads all rows.
Result<std::unique_ptr<Environment>> make_dataset(const DatasetOptions& options);
/// Counts the rows; parses none.
/// The first row of training whose field is not a number is an error.
Status check_dataset_field(const DatasetOptions& options, const std::string& field);
Result<EnvironmentContract::Rows> dataset_rows(const DatasetOptions& options);

}  // namespace primerl
