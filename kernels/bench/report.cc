#include "bench/report.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <tuple>

#include "bench/traffic.h"

namespace norm::bench {
namespace {

using Json = nlohmann::ordered_json;

/// A number with `decimals` digits after the point, so that files differ only where results do.
Json Rounded(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return Json::parse(text);
}

Json RowToJson(const ResultRow& row) {
  Json json;
  json["op"] = row.op;
  json["direction"] = row.direction;
  json["dtype"] = row.dtype;
  json["weight_dtype"] = row.weight_dtype;
  json["shape"] = row.shape;
  json["layout"] = row.layout;
  json["variant"] = row.variant;
  json["impl"] = row.impl;
  json["us"] = Rounded(row.us, 3);
  json["bytes"] = row.bytes;
  json["share_of_copy"] = Rounded(row.share_of_copy, 4);
  json["share_of_same_size_copy"] = Rounded(row.share_of_same_size_copy, 4);
  return json;
}

ResultRow RowFromJson(const Json& json) {
  ResultRow row;
  json.at("op").get_to(row.op);
  json.at("direction").get_to(row.direction);
  json.at("dtype").get_to(row.dtype);
  json.at("weight_dtype").get_to(row.weight_dtype);
  json.at("shape").get_to(row.shape);
  json.at("layout").get_to(row.layout);
  json.at("variant").get_to(row.variant);
  json.at("impl").get_to(row.impl);
  json.at("us").get_to(row.us);
  json.at("bytes").get_to(row.bytes);
  json.at("share_of_copy").get_to(row.share_of_copy);
  json.at("share_of_same_size_copy").get_to(row.share_of_same_size_copy);
  return row;
}

auto Key(const ResultRow& row) {
  return std::tie(row.op, row.direction, row.dtype, row.weight_dtype, row.shape, row.layout,
                  row.variant, row.impl);
}

}  // namespace

ResultRow DescribeCase(const BenchCase& bench_case, const std::string& impl) {
  ResultRow row;
  row.op = OpName(bench_case.op);
  row.direction = DirectionText(bench_case.direction);
  row.dtype = DTypeName(bench_case.dtype);
  row.weight_dtype = DTypeName(bench_case.weight_dtype);
  row.shape = bench_case.shape;
  row.layout = LayoutText(bench_case.layout);
  row.variant = VariantText(bench_case.variant);
  row.impl = impl;
  row.bytes = TrafficOf(bench_case).total_bytes();
  return row;
}

void Merge(Report& report, const ResultRow& row) {
  for (ResultRow& known : report.rows) {
    if (Key(known) == Key(row)) {
      known = row;
      return;
    }
  }
  report.rows.push_back(row);
}

std::string ToJson(const Report& report) {
  std::string text = "{\"device\": " + Json(report.device).dump() +
                     ",\n \"date\": " + Json(report.date).dump() +
                     ",\n \"commit\": " + Json(report.commit).dump() +
                     ",\n \"source_hash\": " + Json(report.source_hash).dump() +
                     ",\n \"copy_gbs\": " + Rounded(report.copy_gbs, 1).dump() + ",\n \"rows\": [";
  const char* separator = "\n  ";
  for (const ResultRow& row : report.rows) {
    text += separator + RowToJson(row).dump();
    separator = ",\n  ";
  }
  return text + "\n]}\n";
}

Result<Report> ReportFromJson(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    Report report;
    json.at("device").get_to(report.device);
    json.at("date").get_to(report.date);
    json.at("commit").get_to(report.commit);
    json.at("source_hash").get_to(report.source_hash);
    json.at("copy_gbs").get_to(report.copy_gbs);
    for (const Json& row : json.at("rows")) report.rows.push_back(RowFromJson(row));
    return report;
  } catch (const Json::exception& error) {
    return Status(StatusCode::kInvalidArgument, std::string("not a result file: ") + error.what());
  }
}

Result<Report> ReadReport(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(StatusCode::kInvalidArgument, path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  Result<Report> report = ReportFromJson(text.str());
  if (!report.ok()) {
    return Status(StatusCode::kInvalidArgument, path + ": " + report.status().message());
  }
  return report;
}

Status WriteFileWhole(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".unfinished";
  {
    std::ofstream file(unfinished, std::ios::trunc);
    file << text << std::flush;
    if (!file) return Status(StatusCode::kInvalidArgument, unfinished + ": cannot be written");
  }
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (error) return Status(StatusCode::kInvalidArgument, path + ": " + error.message());
  return Status();
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &parts);
  return text;
}

}  // namespace norm::bench
