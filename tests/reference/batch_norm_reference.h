// BatchNorm from its definition, in extended precision. Absent tensors are empty vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace norm::reference {

enum class ChannelLayout { kNchw, kNhwc };
enum class StatisticsSource { kBatch, kRunning };

/// [batch, channels, spatial] or [batch, spatial, channels].
struct ChannelShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t spatial = 1;
  ChannelLayout layout = ChannelLayout::kNchw;

  int64_t elements() const { return batch * channels * spatial; }
  int64_t Channel(int64_t index) const {
    return layout == ChannelLayout::kNchw ? index / spatial % channels : index % channels;
  }
};

/// visitor(index, channel) for every element, in the order of memory.
template <typename Visitor>
void ForEachElement(const ChannelShape& shape, Visitor&& visitor) {
  const bool nchw = shape.layout == ChannelLayout::kNchw;
  const int64_t planes = nchw ? shape.batch : shape.batch * shape.spatial;
  const int64_t values = nchw ? shape.spatial : 1;
  size_t i = 0;
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t channel = 0; channel < shape.channels; ++channel) {
      for (int64_t value = 0; value < values; ++value) {
        visitor(i++, static_cast<size_t>(channel));
      }
    }
  }
}

struct BatchNormProblem {
  ChannelShape shape;
  StatisticsSource statistics = StatisticsSource::kBatch;
  double eps = 0.0;
  double momentum = 0.0;  // weight of the new value
  std::vector<double> x;  // as shape; everything else [channels]
  std::vector<double> weight;
  std::vector<double> bias;
  std::vector<double> running_mean;
  std::vector<double> running_var;
};

struct BatchNormResult {
  std::vector<double> y;            // not rounded
  std::vector<double> y_magnitude;  // sum of the absolute terms that y is made of
  std::vector<double> mean;         // of what normalized: the batch's or the running ones
  std::vector<double> rstd;
  std::vector<double> new_running_mean;  // with kBatch and running statistics
  std::vector<double> new_running_var;
};

BatchNormResult BatchNormForward(const BatchNormProblem& problem);

struct BatchNormGradientProblem {
  ChannelShape shape;
  StatisticsSource statistics = StatisticsSource::kBatch;
  double eps = 0.0;
  std::vector<double> dy;
  std::vector<double> x;
  std::vector<double> weight;
  std::vector<double> running_mean;  // kRunning only
  std::vector<double> running_var;
};

struct BatchNormGradients {
  std::vector<double> dx;
  std::vector<double> dx_magnitude;       // [channels]: |weight| * rstd times the largest |dy|
  std::vector<double> dweight;            // [channels]
  std::vector<double> dweight_magnitude;  // [channels]: sum of |terms|
  std::vector<double> dbias;
  std::vector<double> dbias_magnitude;
};

BatchNormGradients BatchNormBackward(const BatchNormGradientProblem& problem);

}  // namespace norm::reference
