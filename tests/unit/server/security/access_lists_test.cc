#include "server/security/access_lists.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace norm::server {
namespace {

using Code = absl::StatusCode;

TEST(AccessListsTest, AreasAreToldByTheWholeNameOfTheService) {
  EXPECT_EQ(AreaOf("/norm.v1.NormalizationService/Normalize"), Area::kData);
  EXPECT_EQ(AreaOf("/grpc.health.v1.Health/Watch"), Area::kOpen);
  for (const char* path :
       {"/norm.v1.ServerService/GetServerInfo", "/norm.v1.NormalizationServiceX/Normalize",
        "/norm.v1.NormalizationService", "norm.v1.NormalizationService/Normalize",
        "/grpc.health.v1.HealthX/Check", "/x/grpc.health.v1.Health/Check",
        "/NORM.V1.NORMALIZATIONSERVICE/Normalize", "//grpc.health.v1.Health/Check", "/", ""}) {
    EXPECT_EQ(AreaOf(path), Area::kAdmin) << path;
  }
}

TEST(AccessListsTest, DescribesWithoutTellingWho) {
  AccessList data;
  data.given = true;
  data.tokens = {"0123456789abcdef", "fedcba9876543210"};
  data.clients = {"reader"};
  const AccessLists lists(data, AccessList());
  EXPECT_EQ(lists.Describe(Area::kData), "2 tokens, 1 clients");
  EXPECT_EQ(lists.Describe(Area::kAdmin), "closed");
  EXPECT_EQ(lists.Describe(Area::kOpen), "open");
  const AccessLists admin_alone(AccessList(), data);
  EXPECT_EQ(admin_alone.Describe(Area::kData), "open");
  EXPECT_EQ(AccessLists(AccessList(), AccessList()).Describe(Area::kAdmin), "open");
}

TEST(AccessListsTest, ATokenCountsWhereverItStandsInTheList) {
  AccessList data;
  data.given = true;
  data.tokens = {"0123456789abcdef", "0123456789abcdeg", "0123456789abcdef0"};
  const AccessLists lists(data, AccessList());
  const auto check = [&lists](const std::string& authorization) {
    Caller caller;
    caller.authorization = authorization;
    return lists.Check(Area::kData, caller).code();
  };
  for (const std::string& token : data.tokens) EXPECT_EQ(check("Bearer " + token), Code::kOk);
  EXPECT_EQ(check("BEARER 0123456789abcdef"), Code::kOk);
  for (const char* wrong :
       {"Bearer 0123456789abcde", "Bearer 0123456789abcdeF", "Bearer  0123456789abcdef",
        "Bearer 0123456789abcdef ", "Bearer", "", "0123456789abcdef"}) {
    EXPECT_EQ(check(wrong), Code::kUnauthenticated) << wrong;
  }
}

TEST(AccessListsTest, ACertificateThatIsNotListedMayStillCarryAToken) {
  AccessList data;
  data.given = true;
  data.tokens = {"0123456789abcdef"};
  data.clients = {"reader"};
  const AccessLists lists(data, AccessList());
  Caller caller;
  caller.has_certificate = true;
  caller.certificate_names = {"stranger", "reader.example"};
  EXPECT_EQ(lists.Check(Area::kData, caller).code(), Code::kPermissionDenied);
  caller.authorization = "Bearer 0123456789abcdef";
  EXPECT_EQ(lists.Check(Area::kData, caller).code(), Code::kOk);
  caller.authorization = "Bearer 0000000000000000";
  EXPECT_EQ(lists.Check(Area::kData, caller).code(), Code::kUnauthenticated);
  caller.certificate_names.push_back("reader");
  EXPECT_EQ(lists.Check(Area::kData, caller).code(), Code::kOk);
  caller = Caller();
  caller.has_certificate = true;  // one without any name
  EXPECT_EQ(lists.Check(Area::kData, caller).code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace norm::server
