// Bearer tokens (RFC 6750) in files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/credentials/secret_file.h"

namespace norm::credentials {

/// Metadata key of a call's token, and what stands before the token in its value.
inline constexpr char kAuthorization[] = "authorization";
inline constexpr char kBearer[] = "Bearer ";

/// A shorter one could be guessed over the network.
inline constexpr size_t kMinTokenLength = 16;

/// What is wrong with a token, without the token; nothing when it is one: 16 letters, digits and
/// -._~+/ or more, = at its end.
std::string FindTokenMistake(absl::string_view token);

/// The lines of a text that hold something, without spaces around it and without those that begin
/// with '#'. `numbers` (optional) gets the number of each, from 1.
std::vector<absl::string_view> ContentLines(absl::string_view text, std::vector<int>* numbers);

/// The tokens of a file, one a line. Errors: those of ReadFile, and INVALID_ARGUMENT that names the
/// line for what is no token, and for a file without any.
absl::StatusOr<std::vector<std::string>> ReadTokens(const NamedFile& file);

/// The only token of a file. Errors: as above, and INVALID_ARGUMENT when there are more.
absl::StatusOr<std::string> ReadToken(const NamedFile& file);

}  // namespace norm::credentials
