// What results are checked against before anything is timed: the formulas in float64, element by
// element, sharing no code with what they check. Simple and slow. Free of namespace norm.
#pragma once

#include <cstdint>

#include "bench/device_tensor.h"

namespace norm_device {

/// Checked outputs, one OutputCheck each.
enum Checked : int {
  kCheckedY,
  kCheckedResidualSum,
  kCheckedMean,
  kCheckedRstd,
  kCheckedNewRunningMean,
  kCheckedNewRunningVar,
  kCheckedDx,
  kCheckedDweight,
  kCheckedDbias,
  kCheckedRowScale,
  kCheckedCount,
};

/// Zeroed before a check.
struct OutputCheck {
  unsigned long long values;
  unsigned long long wrong;
  unsigned long long worst_bits;  // of the largest error over its tolerance, as a double
};

/// Row ops. Absent tensors have null data; `center` is LayerNorm.
struct RowReferenceParams {
  AnyTensor x;
  AnyTensor residual;
  AnyTensor weight;
  AnyTensor bias;
  AnyTensor dy;
  AnyTensor dresidual_sum;
  // What is checked.
  AnyTensor y;
  AnyTensor residual_sum;
  AnyTensor mean;
  AnyTensor rstd;
  AnyTensor dx;
  AnyTensor dweight;
  AnyTensor dbias;
  AnyTensor row_scale;  // of one-byte y; y_scale where it is absent
  double y_scale;
  int64_t rows;
  int64_t hidden_size;
  double eps;
  double weight_offset;
  int center;
  double* row_mean;     // [rows]
  double* row_rstd;     // [rows]
  double* column_sums;  // [4, hidden_size], zeroed: dweight, dbias, and both of absolute terms
  OutputCheck* checks;  // [kCheckedCount]
};
/// Fills row_mean and row_rstd. One block a row.
const void* RowStatisticsReference();
/// Checks y, residual_sum, mean, rstd.
const void* CheckRowForward();
/// As CheckRowForward, for y of one byte: checks row_scale, too.
const void* CheckRowQuantized();
/// Checks dx.
const void* CheckRowBackward();
/// Adds to column_sums: threads of x over columns, blocks of y over rows.
const void* RowColumnSums();
/// Checks dweight and dbias. One thread a column.
const void* CheckRowColumns();

/// BatchNorm over [batch, channels, spatial] or [batch, spatial, channels].
struct ChannelReferenceParams {
  AnyTensor x;
  AnyTensor weight;
  AnyTensor bias;
  AnyTensor running_mean;
  AnyTensor running_var;
  AnyTensor dy;
  // What is checked.
  AnyTensor y;
  AnyTensor mean;
  AnyTensor rstd;
  AnyTensor new_running_mean;
  AnyTensor new_running_var;
  AnyTensor dx;
  AnyTensor dweight;
  AnyTensor dbias;
  int64_t batch;
  int64_t channels;
  int64_t spatial;
  double eps;
  double momentum;
  int channels_last;
  int training;
  double* channel_mean;  // [channels]; all of these are zeroed
  double* channel_m2;
  double* channel_rstd;
  double* channel_sums;     // [4, channels] as column_sums
  double* channel_largest;  // largest |dy|
  OutputCheck* checks;
};
/// The statistics in three steps: blocks of x over channels, of y over chunks of a channel.
const void* ChannelSumReference();
const void* ChannelSquaresReference();
/// Finishes mean and rstd. One thread a channel.
const void* ChannelFinishReference();
/// Adds to channel_sums and channel_largest; blocks as above.
const void* ChannelGradientSums();
/// Checks y or dx, element by element.
const void* CheckChannelElements();
/// Checks statistics, running statistics, dweight and dbias. One thread a channel.
const void* CheckChannels();

/// Converts float64 values.
struct ConvertParams {
  const double* from;
  AnyTensor to;
  int64_t count;
};
const void* ConvertKernel();

}  // namespace norm_device
