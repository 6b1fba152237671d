#include "server/transport/connections.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"

namespace norm::server {
namespace {

using google::protobuf::Struct;

/// One of gRPC's answers, which it allocates, as a message. Empty when it is none.
Struct Parse(char* json) {
  Struct message;
  if (json == nullptr) return message;
  (void)google::protobuf::util::JsonStringToMessage(json, &message);
  gpr_free(json);
  return message;
}

/// Walks a list that gRPC gives in pages: `page(start)` from the first id at or after `start`, its
/// entries under `list`, their ids under `id`, inside `ref` where that is not empty.
template <typename Page>
std::vector<intptr_t> Ids(Page page, const char* list, const std::string& ref, const char* id) {
  std::vector<intptr_t> ids;
  while (true) {
    const Struct answer = Parse(page(ids.empty() ? 0 : ids.back() + 1));
    const auto entries = answer.fields().find(list);
    if (entries == answer.fields().end()) return ids;
    const size_t before = ids.size();
    for (const auto& entry : entries->second.list_value().values()) {
      const Struct& fields =
          ref.empty() ? entry.struct_value() : entry.struct_value().fields().at(ref).struct_value();
      int64_t number = 0;
      if (absl::SimpleAtoi(fields.fields().at(id).string_value(), &number)) {
        ids.push_back(static_cast<intptr_t>(number));
      }
    }
    if (ids.size() == before || answer.fields().contains("end")) return ids;
  }
}

}  // namespace

int64_t CountConnections() {
  int64_t connections = 0;
  for (const intptr_t server : Ids(grpc_channelz_get_servers, "server", "ref", "serverId")) {
    const auto sockets = [server](intptr_t start) {
      return grpc_channelz_get_server_sockets(server, start, /*max_results=*/0);
    };
    connections += static_cast<int64_t>(Ids(sockets, "socketRef", "", "socketId").size());
  }
  return connections;
}

}  // namespace norm::server
