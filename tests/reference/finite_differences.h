// What the oracle's own tests share: seeded data and derivatives by central differences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace norm::reference {

/// `count` standard normal values; the same for the same seed.
std::vector<double> NormalValues(size_t count, uint32_t seed);

/// Fails the test where an element differs by more than `tolerance`.
void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance);

/// d loss / d values; `values` is changed while it runs and as before when it returns.
std::vector<double> CentralDifferences(std::vector<double>& values,
                                       const std::function<double()>& loss);

}  // namespace norm::reference
