#include "actors/env/environments/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "actors/common/text.h"
#include "actors/data/examples.h"
#include "actors/env/environments/data_rows.h"
#include "actors/env/row_tasks.h"
#include "graph/base/file_digest.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

/// The rows of one file that the environment gives.
struct DataFile {
  DataRows rows;
  std::vector<uint32_t> chosen;     // indexes of the rows of the split
  std::vector<uint32_t> evaluated;  // of the rows in the holdout; all rows if there is none
  int64_t weight = 1;
  int64_t first_slot = 0;  // of a cycle: the weights of the files before it
  uint64_t first_row = 0;  // rows of training of the files before it
};

/// The text of a field. Numbers and booleans are written as JSON writes them.
Result<std::string> text_of(const DataRows& rows, size_t index, const Json& row,
                            const std::string& field) {
  const Json* value = row.find(field);
  if (value == nullptr) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : row.as_object()) names.push_back(name);
    return rows.fault(index, "", fmt::format("the row has no '{}'", field))
        .note(names.empty() ? "the row has no fields" : "its fields: " + join_names(names));
  }
  if (value->is_string()) return value->as_string();
  if (value->is_number() || value->is_bool()) return value->dump();
  return rows.fault(index, field,
                    fmt::format("'{}' is {}, not a string or a number", field, value->kind()));
}

class Dataset final : public Environment, public RowTasks {
 public:
  Dataset(DatasetOptions options, std::vector<DataFile> files)
      : options_(std::move(options)), files_(std::move(files)) {
    uint64_t num_rows = 0;
    for (DataFile& file : files_) {
      file.first_slot = std::exchange(cycle_, cycle_ + file.weight);
      file.first_row = std::exchange(num_rows, num_rows + file.chosen.size());
    }
  }

  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream) override {
    const auto [file, index] = chosen_at(ordinal);
    return task_of(*file, file->chosen[index]);
  }

  uint64_t row_of(uint64_t ordinal) const override {
    const auto [file, index] = chosen_at(ordinal);
    return file->first_row + index;
  }

  Result<double> number_of_row(uint64_t row, const std::string& field) const override {
    for (const DataFile& file : files_) {
      if (row >= file.first_row + file.chosen.size()) continue;
      const size_t index = file.chosen[row - file.first_row];
      ASSIGN_OR_RETURN(const Json json, file.rows.row(index));
      const Json* const value = json.find(field);
      if (value == nullptr)
        return file.rows.fault(index, "", fmt::format("the row has no '{}'", field));
      if (value->is_number()) return value->as_double();
      // Every value of CSV is a text.
      double number = 0;
      if (value->is_string()) {
        const std::string& text = value->as_string();
        const char* const end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, number);
        if (read.ec == std::errc() && read.ptr == end && std::isfinite(number)) return number;
      }
      return file.rows.fault(index, field,
                             fmt::format("'{}' is {}, not a number", field, value->dump()));
    }
    return error(Code::kInvalid, "the data set has no row {}", row);
  }

  /// The row of an ordinal of training: its file, and its index in `chosen`.
  std::pair<const DataFile*, uint64_t> chosen_at(uint64_t ordinal) const {
    const auto seed = static_cast<uint64_t>(options_.seed);
    const auto cycle = static_cast<uint64_t>(cycle_);
    const auto slot = static_cast<int64_t>(shuffled_index(ordinal, cycle, mix(seed, 1)));
    const auto file = std::find_if(files_.begin(), files_.end(), [slot](const DataFile& each) {
      return slot < each.first_slot + each.weight;
    });
    const auto number = ordinal / cycle * static_cast<uint64_t>(file->weight) +
                        static_cast<uint64_t>(slot - file->first_slot);
    const uint64_t count = file->chosen.size();
    const auto key = mix(seed, 2 + static_cast<uint64_t>(file->first_slot));
    return {&*file, options_.shuffle ? shuffled_index(number, count, key) : number % count};
  }

  /// The files' rows one after the other, in the order of each file.
  Result<EnvironmentTask> evaluation_task(uint64_t row, RandomStream) override {
    uint64_t index = row;
    for (const DataFile& file : files_) {
      if (index < file.evaluated.size()) return task_of(file, file.evaluated[index]);
      index -= file.evaluated.size();
    }
    return error(Code::kInvalid, "the data set has {} rows to evaluate, row {} was asked for",
                 row - index, row);
  }

  /// The first row that cannot be a task is an error.
  Status check_rows() const {
    for (const DataFile& file : files_)
      for (size_t i = 0; i < file.rows.size(); ++i) RETURN_IF_ERROR(task_of(file, i));
    return ok();
  }

  EnvironmentContract::Rows rows() const {
    EnvironmentContract::Rows rows;
    for (const DataFile& file : files_) {
      rows.num_training += std::ssize(file.chosen);
      rows.num_evaluation += std::ssize(file.evaluated);
    }
    return rows;
  }

  size_t num_rows() const override {
    size_t count = 0;
    for (const DataFile& file : files_) count += file.rows.size();
    return count;
  }

  Result<EnvironmentTask> task_of_row(size_t row) const override {
    const auto [file, index] = place_of(row);
    return task_of(*file, index);
  }

  Error fault_of_row(size_t row, const std::string& what) const override {
    const auto [file, index] = place_of(row);
    return file->rows.fault(index, options_.messages.empty() ? options_.prompt : options_.messages,
                            what);
  }

  Result<EnvironmentTask> task_of(const DataFile& file, size_t index) const {
    ASSIGN_OR_RETURN(const Json row, file.rows.row(index));
    EnvironmentTask task;
    RETURN_IF_ERROR(options_.messages.empty() ? read_prompt(file.rows, index, row, task)
                                              : read_messages(file.rows, index, row, task));
    // A conversation that ends with the assistant's answer may have it there alone.
    if (!options_.answer.empty() && (task.answer.empty() || row.find(options_.answer) != nullptr)) {
      ASSIGN_OR_RETURN(task.answer, text_of(file.rows, index, row, options_.answer));
    }
    if (!options_.tools.empty() && row.find(options_.tools) != nullptr) {
      const Json& tools = *row.find(options_.tools);
      if (const Status valid = check_tools(tools); !valid.ok())
        return file.rows.fault(index, options_.tools, valid.error().message());
      task.tools = tools.dump();
    }
    task.row = row.dump();
    return task;
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return error(Code::kInvalid, "a step needs an action");
    const bool is_right = trimmed(actions.front()) == trimmed(task.answer);
    return EnvironmentStep{"", is_right && !task.answer.empty() ? 1.0 : 0.0, true};
  }

 private:
  /// The file of a row, and its index there.
  std::pair<const DataFile*, size_t> place_of(size_t row) const {
    auto file = files_.begin();
    while (row >= file->rows.size()) row -= (file++)->rows.size();
    return {&*file, row};
  }

  Status read_prompt(const DataRows& rows, size_t index, const Json& row,
                     EnvironmentTask& task) const {
    ASSIGN_OR_RETURN(const std::string prompt, text_of(rows, index, row, options_.prompt));
    if (prompt.empty())
      return rows.fault(index, options_.prompt, fmt::format("'{}' is empty", options_.prompt));
    task.prompt = options_.system + prompt;
    if (!options_.system.empty())
      task.messages = {chat_message("system", options_.system), chat_message("user", prompt)};
    return ok();
  }

  /// For a tenant without a chat template the prompt is the texts of the messages, one after the
  /// other.
  Status read_messages(const DataRows& rows, size_t index, const Json& row,
                       EnvironmentTask& task) const {
    const Json* value = row.find(options_.messages);
    if (value == nullptr)
      return rows.fault(index, "", fmt::format("the row has no '{}'", options_.messages));
    auto messages = messages_from_json(*value);
    if (!messages.ok())
      return rows.fault(index, options_.messages,
                        fmt::format("'{}': {}", options_.messages, messages.error().message()));
    if (!messages->empty() && messages->back().role == "assistant") {
      task.answer = primerl::text_of(messages->back());
      messages->pop_back();
    }
    if (messages->empty())
      return rows.fault(index, options_.messages,
                        fmt::format("'{}' has no message to answer", options_.messages));
    if (!options_.system.empty())
      messages->insert(messages->begin(), chat_message("system", options_.system));
    for (const ChatMessage& message : *messages)
      task.prompt += (task.prompt.empty() ? "" : "\n") + primerl::text_of(message);
    task.messages = std::move(*messages);
    return ok();
  }

  const DatasetOptions options_;
  std::vector<DataFile> files_;
  int64_t cycle_ = 0;  // the sum of the weights
};

/// Chooses the rows of the split and those of an evaluation. The rows in the holdout are the same
/// for both.
void choose_rows(const DatasetOptions& options, DataFile& file) {
  const size_t count = file.rows.size();
  std::vector<bool> is_holdout(count, false);
  for (int64_t i = 0; i < options.holdout; ++i)
    is_holdout[shuffled_index(static_cast<uint64_t>(i), count,
                              mix(static_cast<uint64_t>(options.seed), 0))] = true;
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(i);
    if (is_holdout[i] == (options.split == "holdout")) file.chosen.push_back(index);
    if (is_holdout[i] || options.holdout == 0) file.evaluated.push_back(index);
  }
}

Result<DataFile> read_file(const DatasetOptions& options, const std::string& name,
                           const FileDigest& digest, int64_t weight) {
  RETURN_IF_ERROR(check_file_digest(name, digest));
  DataFile file;
  file.weight = weight;
  ASSIGN_OR_RETURN(file.rows,
                   DataRows::read(name, options.format, {options.rows_max, options.row_bytes_max}));
  if (std::cmp_greater_equal(options.holdout, file.rows.size()))
    return error(Code::kInvalid, "'holdout' {} leaves none of the {} rows of '{}'", options.holdout,
                 file.rows.size(), name);
  choose_rows(options, file);
  if (file.chosen.empty())
    return error(Code::kInvalid, "'split' is holdout, and 'holdout' is 0")
        .note("write holdout = ROWS");
  return file;
}

Status check_lists(const DatasetOptions& options) {
  if (options.file.empty() == options.files.empty())
    return error(Code::kInvalid, "give either 'file' or 'files'");
  if (options.files.size() > kDataFilesMax)
    return error(Code::kExhausted, "'files' has {} files, at most {} are allowed",
                 options.files.size(), kDataFilesMax);
  const size_t count = std::max<size_t>(options.files.size(), 1);
  if (!options.weights.empty() && options.weights.size() != count)
    return error(Code::kInvalid, "'weights' has {} numbers for {} files", options.weights.size(),
                 count);
  for (const int64_t weight : options.weights)
    if (weight < 1 || weight > kDataWeightMax)
      return error(Code::kInvalid, "'weights' has {}, a weight is from 1 to {}", weight,
                   kDataWeightMax);
  if (!options.files_sha256.empty() && options.files_sha256.size() != options.files.size())
    return error(Code::kInvalid, "'files_sha256' has {} texts for {} files",
                 options.files_sha256.size(), options.files.size());
  if (!options.files_bytes.empty() && options.files_bytes.size() != options.files.size())
    return error(Code::kInvalid, "'files_bytes' has {} sizes for {} files",
                 options.files_bytes.size(), options.files.size());
  return ok();
}

}  // namespace

OptionSet dataset_options() {
  using O = DatasetOptions;
  return OptionsOf<O>()
      .field("file", &O::file, refers_to("file"), "JSONL or CSV, one task a row")
      .field("file_sha256", &O::file_sha256, any(),
             "SHA-256 of the file; another content is refused; if it is not written, the file's")
      .field("file_bytes", &O::file_bytes, at_least(-1) | unit("bytes"),
             "size of the file, in the same way; -1: any")
      .field("files", &O::files, refers_to("file"), "several files, instead of file")
      .field("files_sha256", &O::files_sha256, any(), "SHA-256 of each of files")
      .field("files_bytes", &O::files_bytes, any(), "size of each of files")
      .field("weights", &O::weights, any(),
             "how many tasks of each of files follow in a cycle; empty = one of each")
      .field("format", &O::format, one_of({"auto", "jsonl", "csv"}),
             "auto = by the end of the file's name")
      .field("prompt", &O::prompt, at_least(1), "field of a row that the policy reads")
      .field("messages", &O::messages, any(),
             "field of a row with a conversation, [{role, content}, ...], instead of prompt")
      .field("tools", &O::tools, any(), "field of a row with the tools that the policy may call")
      .field("answer", &O::answer, any(), "field of a row that rewards read; \"\" = none")
      .field("system", &O::system, any(),
             "first message of each conversation; the model needs a chat template")
      .field("shuffle", &O::shuffle, any(), "each epoch of a file has an order of its own")
      .field("seed", &O::seed, at_least(0), "seed of the order and of the rows in the holdout")
      .field("holdout", &O::holdout, count_from(0) | unit("rows"),
             "rows of each file that do not train")
      .field("split", &O::split, one_of({"train", "holdout"}), "which rows are the tasks")
      .field("rows_max", &O::rows_max, count_from(1) | unit("rows"), "most rows of a file")
      .field("row_bytes_max", &O::row_bytes_max, between(1, int64_t{64} << 20) | unit("bytes"),
             "most bytes of a row");
}

namespace {

Result<std::unique_ptr<Dataset>> read_dataset(const DatasetOptions& options) {
  RETURN_IF_ERROR(check_lists(options));
  const auto& names =
      options.files.empty() ? std::vector<std::string>{options.file} : options.files;
  std::vector<DataFile> files;
  for (size_t i = 0; i < names.size(); ++i) {
    FileDigest digest{options.file_sha256, options.file_bytes};
    if (!options.files_sha256.empty()) digest.sha256 = options.files_sha256[i];
    if (!options.files_bytes.empty()) digest.bytes = options.files_bytes[i];
    const int64_t weight = options.weights.empty() ? 1 : options.weights[i];
    ASSIGN_OR_RETURN(auto file, read_file(options, names[i], digest, weight));
    files.push_back(std::move(file));
  }
  return std::make_unique<Dataset>(options, std::move(files));
}

}  // namespace

Result<std::unique_ptr<Environment>> make_dataset(const DatasetOptions& options) {
  ASSIGN_OR_RETURN(auto made, read_dataset(options));
  RETURN_IF_ERROR(made->check_rows());
  return std::unique_ptr<Environment>(std::move(made));
}

Status check_dataset_field(const DatasetOptions& options, const std::string& field) {
  ASSIGN_OR_RETURN(const auto made, read_dataset(options));
  const auto num_rows = static_cast<uint64_t>(made->rows().num_training);
  for (uint64_t row = 0; row < num_rows; ++row) RETURN_IF_ERROR(made->number_of_row(row, field));
  return ok();
}

Result<EnvironmentContract::Rows> dataset_rows(const DatasetOptions& options) {
  ASSIGN_OR_RETURN(const auto made, read_dataset(options));
  return made->rows();
}

}  // namespace primerl
