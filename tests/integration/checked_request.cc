#include "tests/integration/checked_request.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/integration/wire_dtype.h"
#include "tests/support/tensor_data.h"

namespace norm::test {

::testing::AssertionResult CheckedRequest::Check(
    const norm::v1::NormalizeResponse& response) const {
  return CheckMessage(response);
}

::testing::AssertionResult CheckedRequest::Check(
    const norm::v1::NormalizeBackwardResponse& response) const {
  return CheckMessage(response);
}

::testing::AssertionResult CheckedRequest::CheckMessage(
    const google::protobuf::Message& response) const {
  const auto fail = [this](const std::string& what) {
    return ::testing::AssertionFailure() << label_ << ": " << what;
  };
  std::set<std::string> present;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  response.GetReflection()->ListFields(response, &fields);
  for (const auto* field : fields) present.insert(field->name());
  if (present.erase("timing") != 1) return fail("no timing");
  for (const Expected& expected : expected_) {
    if (present.erase(expected.name) != 1) return fail("no " + expected.name);
    const auto* field = response.GetDescriptor()->FindFieldByName(expected.name);
    const auto& tensor = dynamic_cast<const norm::v1::Tensor&>(
        response.GetReflection()->GetMessage(response, field));
    if (tensor.dtype() != ToWire(expected.dtype)) return fail("dtype of " + expected.name);
    if (!std::equal(tensor.shape().begin(), tensor.shape().end(), expected.shape.begin(),
                    expected.shape.end())) {
      return fail("shape of " + expected.name);
    }
    if (tensor.data().size() != expected.reference.size() * DTypeSize(expected.dtype)) {
      return fail("size of " + expected.name);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(tensor.data().data());
    const std::vector<double> got =
        norm::testing::ToValues(expected.dtype, {bytes, bytes + tensor.data().size()});
    norm::testing::Expectation expectation;
    expectation.reference = &expected.reference;
    expectation.scale = [&](size_t i) { return expected.scale[i]; };
    if (!expected.floor.empty()) {
      expectation.floor = [&](size_t i) { return expected.floor[i]; };
    }
    const ::testing::AssertionResult matches =
        norm::testing::Matches(expected.rule, expected.dtype, got, expectation);
    if (!matches) return fail(absl::StrCat(expected.name, ": ", matches.message()));
  }
  if (!present.empty()) return fail("unasked tensor " + *present.begin());
  return ::testing::AssertionSuccess();
}

}  // namespace norm::test
