#include "server/transport/connections.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"

namespace norm::server {
namespace {

using nlohmann::json;

/// One of gRPC's answers, which it allocates. Discarded when it is none.
json Parse(char* text) {
  if (text == nullptr) return json(json::value_t::discarded);
  json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  gpr_free(text);
  return answer;
}

/// Walks a list that gRPC gives in pages: `page(start)` from the first id at or after `start`, its
/// entries under `list`, their ids at `id`, which are decimal strings.
template <typename Page>
std::vector<intptr_t> Ids(Page page, const std::string& list, const json::json_pointer& id) {
  std::vector<intptr_t> ids;
  while (true) {
    const json answer = Parse(page(ids.empty() ? 0 : ids.back() + 1));
    const auto entries = answer.find(list);
    if (entries == answer.end()) return ids;
    const size_t before = ids.size();
    for (const json& entry : *entries) {
      int64_t number = 0;
      if (entry.contains(id) && entry.at(id).is_string() &&
          absl::SimpleAtoi(entry.at(id).get_ref<const std::string&>(), &number)) {
        ids.push_back(static_cast<intptr_t>(number));
      }
    }
    if (ids.size() == before || answer.contains("end")) return ids;
  }
}

}  // namespace

int64_t CountConnections() {
  int64_t connections = 0;
  const json::json_pointer server_id("/ref/serverId");
  const json::json_pointer socket_id("/socketId");
  for (const intptr_t server : Ids(grpc_channelz_get_servers, "server", server_id)) {
    const auto sockets = [server](intptr_t start) {
      return grpc_channelz_get_server_sockets(server, start, /*max_results=*/0);
    };
    connections += static_cast<int64_t>(Ids(sockets, "socketRef", socket_id).size());
  }
  return connections;
}

}  // namespace norm::server
