#include "kernels/text/tokenizer.h"

#include "runtime/backends/chat_input.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct TokenizeArguments {
  std::string folder;
  std::string text;
  std::string chat;
  std::string kwargs;
  bool special_tokens = false;
  bool no_prompt = false;
  bool train = false;
  bool json = false;
};

/// The output: ids, and the text that they encode.
struct Encoded {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint8_t> trains;  // with --train
};

Status check_arguments(const TokenizeArguments& arguments) {
  if (arguments.text.empty() == arguments.chat.empty())
    return error(Code::kInvalid,
                 "exactly one of --text and --chat is needed, and not an empty one");
  if (arguments.chat.empty() && (arguments.no_prompt || arguments.train))
    return error(Code::kInvalid, "--no-generation-prompt and --train need --chat");
  if (arguments.special_tokens && !arguments.chat.empty())
    return error(Code::kInvalid, "--special-tokens needs --text")
        .note("in a chat only the template writes special tokens");
  return ok();
}

Result<Encoded> encode_chat(const TokenizeArguments& arguments, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const ChatInput input, read_chat_input(arguments.chat, arguments.kwargs));
  ASSIGN_OR_RETURN(const auto format, chat_format_of_folder(tokenizer, input.kwargs));
  const Json* tools = input.tools ? &*input.tools : nullptr;
  ASSIGN_OR_RETURN(const auto rendered,
                   format.render(input.messages, tools, !arguments.no_prompt && !arguments.train));
  Encoded encoded;
  encoded.text = rendered.text;
  if (!arguments.train) {
    ASSIGN_OR_RETURN(encoded.ids, format.encode(rendered));
    return encoded;
  }
  ASSIGN_OR_RETURN(auto row, format.supervised(input.messages, tools));
  encoded.ids = std::move(row.ids);
  encoded.trains = std::move(row.trains);
  return encoded;
}

Result<Encoded> encode_all(const TokenizeArguments& arguments, const Tokenizer& tokenizer) {
  if (!arguments.chat.empty()) return encode_chat(arguments, tokenizer);
  Encoded encoded;
  encoded.text = arguments.text;
  ASSIGN_OR_RETURN(encoded.ids, arguments.special_tokens
                                    ? tokenizer.encode_with_specials(arguments.text)
                                    : tokenizer.encode_text(arguments.text));
  return encoded;
}

Status print_encoded(const Encoded& encoded, const Tokenizer& tokenizer, bool as_json) {
  std::vector<std::string> texts;
  for (const int32_t id : encoded.ids) {
    ASSIGN_OR_RETURN(std::string text, tokenizer.decode({id}, false));
    texts.push_back(std::move(text));
  }
  if (as_json) {
    Json json = Json::object()
                    .set("schema", "primerl.tokenize/1")
                    .set("text", encoded.text)
                    .set("token_ids", Json::list(encoded.ids))
                    .set("tokens", Json::list(texts));
    if (!encoded.trains.empty()) {
      Json trains = Json::array();
      for (const uint8_t each : encoded.trains) trains.push_back(each != 0);
      json.set("trains", std::move(trains));
    }
    print_text(json.dump() + "\n");
    return ok();
  }
  std::string lines;
  for (size_t i = 0; i < texts.size(); ++i)
    lines += fmt::format("{:>8}  {}{}\n", encoded.ids[i],
                         encoded.trains.empty() ? "" : (encoded.trains[i] != 0 ? "* " : "  "),
                         Json(texts[i]).dump());
  print_text(encoded.text + (encoded.text.ends_with('\n') ? "" : "\n") + "\n" + lines);
  return ok();
}

int run_tokenize(const TokenizeArguments& arguments) {
  if (const Status valid = check_arguments(arguments); !valid.ok())
    return fail(valid.error(), kExitBadCommandLine);
  const auto tokenizer = load_tokenizer(arguments.folder);
  if (!tokenizer.ok()) return fail(tokenizer.error(), kExitBadConfiguration);
  const auto encoded = encode_all(arguments, **tokenizer);
  if (!encoded.ok()) return fail(encoded.error(), kExitBadConfiguration);
  const Status printed = print_encoded(*encoded, **tokenizer, arguments.json);
  return printed.ok() ? kExitDone : fail(printed.error(), kExitFailed);
}

}  // namespace

Command tokenize_command() {
  auto arguments = std::make_shared<TokenizeArguments>();
  return {"tokenize", "prints the tokens of a text or of a conversation in the chat template",
          "primerl-graph tokenize examples/reverse_text/model --text 'abc'",
          [arguments](Arguments& flags) {
            flags.positional(arguments->folder, "DIR", "a model folder");
            flags.text(arguments->text, "--text", "TEXT", "a plain text");
            flags.text(arguments->chat, "--chat", "FILE.json|TEXT",
                       "a list of messages, an object with messages and tools, or a user's text");
            flags.text(arguments->kwargs, "--chat-kwargs", "JSON",
                       "variables of the template, such as '{\"enable_thinking\": false}'");
            flags.flag(arguments->no_prompt, "--no-generation-prompt",
                       "the text ends with the last message, without the beginning of an answer");
            flags.flag(arguments->train, "--train",
                       "the supervised row: * marks the tokens that train");
            flags.flag(arguments->special_tokens, "--special-tokens",
                       "special tokens written out in --text count as such; else they are text");
            flags.flag(arguments->json, "--json", "one JSON object instead of lines");
          },
          [arguments] { return run_tokenize(*arguments); }};
}

}  // namespace primerl
