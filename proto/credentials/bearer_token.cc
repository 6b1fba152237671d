#include "proto/credentials/bearer_token.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace norm::credentials {
namespace {

constexpr absl::string_view kSymbols = "-._~+/";

}  // namespace

std::string FindTokenMistake(absl::string_view token) {
  if (token.empty()) return "is empty";
  if (token.size() < kMinTokenLength) {
    return absl::StrCat("has ", token.size(), " characters, fewer than ", kMinTokenLength);
  }
  absl::string_view body = token;
  while (absl::ConsumeSuffix(&body, "=")) {
  }
  for (size_t i = 0; i < body.size(); ++i) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(body[i])) &&
        kSymbols.find(body[i]) == absl::string_view::npos) {
      return absl::StrCat("has something else than letters, digits and ", kSymbols,
                          " (= at its end) as character ", i + 1);
    }
  }
  return "";
}

std::vector<absl::string_view> ContentLines(absl::string_view text, std::vector<int>* numbers) {
  std::vector<absl::string_view> lines;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    lines.push_back(line);
    if (numbers != nullptr) numbers->push_back(number);
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> ReadTokens(const NamedFile& file) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return text.status();
  std::vector<int> numbers;
  std::vector<std::string> tokens;
  for (absl::string_view line : ContentLines(*text, &numbers)) {
    const std::string mistake = FindTokenMistake(line);
    if (!mistake.empty()) {
      return Violation(file,
                       absl::StrCat("line ", numbers[tokens.size()], ": the token ", mistake));
    }
    tokens.emplace_back(line);
  }
  if (tokens.empty()) return Violation(file, "holds no token");
  return tokens;
}

absl::StatusOr<std::string> ReadToken(const NamedFile& file) {
  absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(file);
  if (!tokens.ok()) return tokens.status();
  if (tokens->size() > 1) {
    return Violation(file, absl::StrCat("holds ", tokens->size(), " tokens, one is needed"));
  }
  return std::move(tokens->front());
}

}  // namespace norm::credentials
