#include "tests/reference/finite_differences.h"

#include <gtest/gtest.h>

#include <random>

namespace norm::reference {

std::vector<double> NormalValues(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) {
    value = normal(engine);
  }
  return values;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
  }
}

std::vector<double> CentralDifferences(std::vector<double>& values,
                                       const std::function<double()>& loss) {
  constexpr double kStep = 1e-4;
  std::vector<double> gradient;
  for (double& value : values) {
    const double original = value;
    value = original + kStep;
    const double above = loss();
    value = original - kStep;
    const double below = loss();
    value = original;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

}  // namespace norm::reference
