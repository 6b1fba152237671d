// The codec against protobuf itself: whatever protobuf writes it must read, and the other way
// round, at every slice border.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "proto/codec/message_writer.h"

namespace norm::wire {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const Payload& payload) {
  std::string bytes(static_cast<size_t>(payload.size_bytes), '\0');
  payload.CopyTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

grpc::ByteBuffer Buffer(const std::vector<std::string>& parts) {
  std::vector<grpc::Slice> slices;
  slices.reserve(parts.size());
  for (const std::string& part : parts) slices.emplace_back(part);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

v1::StreamRequest SampleRequest() {
  v1::StreamRequest request;
  request.set_id(300);
  v1::NormalizeRequest* forward = request.mutable_forward();
  forward->mutable_layer_norm()->set_eps(1e-12);
  v1::Tensor* x = forward->mutable_x();
  x->set_dtype(v1::DTYPE_F32);
  x->add_shape(2);
  x->add_shape(5);
  x->set_data(std::string("0123456789abcdefghijklmnopqrstuvwxyzABCD"));
  v1::Tensor* weight = forward->mutable_weight();
  weight->set_dtype(v1::DTYPE_F32);
  weight->add_shape(5);
  weight->set_data(std::string("the weights: 20 byte"));
  forward->mutable_bias()->add_shape(0);
  return request;
}

TEST(ReceivedMessageTest, ReadsProtobufOutputSplitAtEveryByte) {
  const v1::StreamRequest original = SampleRequest();
  const std::string bytes = original.SerializeAsString();
  for (size_t split = 0; split <= bytes.size(); ++split) {
    ReceivedMessage message;
    v1::StreamRequest header;
    ASSERT_TRUE(
        message.Parse(Buffer({bytes.substr(0, split), "", bytes.substr(split)}), &header).ok());
    ASSERT_EQ(header.id(), 300U);
    ASSERT_EQ(header.forward().layer_norm().eps(), 1e-12);
    ASSERT_EQ(Bytes(message.payload(header.forward().x())), original.forward().x().data());
    ASSERT_EQ(Bytes(message.payload(header.forward().weight())),
              original.forward().weight().data());
    ASSERT_EQ(message.payload(header.forward().bias()).size_bytes, 0);
    ASSERT_EQ(header.forward().x().shape_size(), 2);
  }
}

// gRPC joins neighbouring slices that are small enough to be stored inline, so the runs are short
// but not of one byte.
TEST(ReceivedMessageTest, ReadsManySmallSlices) {
  const v1::StreamRequest original = SampleRequest();
  std::vector<std::string> parts;
  for (const char byte : original.SerializeAsString()) parts.emplace_back(1, byte);
  ReceivedMessage message;
  v1::StreamRequest header;
  ASSERT_TRUE(message.Parse(Buffer(parts), &header).ok());
  EXPECT_EQ(Bytes(message.payload(header.forward().x())), original.forward().x().data());
  EXPECT_GE(message.payload(header.forward().x()).runs.size(), 2U);
}

TEST(ReceivedMessageTest, PayloadsSurviveAMove) {
  const v1::StreamRequest original = SampleRequest();
  std::vector<std::string> parts;
  for (const char byte : original.SerializeAsString()) parts.emplace_back(1, byte);
  ReceivedMessage first;
  v1::StreamRequest header;
  ASSERT_TRUE(first.Parse(Buffer(parts), &header).ok());
  const ReceivedMessage second = std::move(first);
  EXPECT_EQ(Bytes(second.payload(header.forward().weight())), original.forward().weight().data());
}

TEST(ReceivedMessageTest, LastDataWinsWhenATensorIsRepeated) {
  v1::NormalizeRequest first;
  first.mutable_x()->set_data("first");
  v1::NormalizeRequest second;
  second.mutable_x()->add_shape(7);
  second.mutable_x()->set_data("second one");
  ReceivedMessage message;
  v1::NormalizeRequest header;
  ASSERT_TRUE(
      message.Parse(Buffer({first.SerializeAsString() + second.SerializeAsString()}), &header)
          .ok());
  EXPECT_EQ(Bytes(message.payload(header.x())), "second one");
  EXPECT_EQ(header.x().shape(0), 7);
}

TEST(ReceivedMessageTest, KeepsUnknownFieldsOpaque) {
  v1::NormalizeRequest original;
  original.mutable_x()->set_data("payload");
  // Field 2000, length-delimited, 3 bytes.
  const std::string bytes = original.SerializeAsString() + std::string(
                                                               "\x82\x7d\x03"
                                                               "abc",
                                                               6);
  ReceivedMessage message;
  v1::NormalizeRequest header;
  ASSERT_TRUE(message.Parse(Buffer({bytes}), &header).ok());
  EXPECT_EQ(Bytes(message.payload(header.x())), "payload");
}

TEST(ReceivedMessageTest, EmptyMessageIsADefaultOne) {
  ReceivedMessage message;
  v1::NormalizeRequest header;
  EXPECT_TRUE(message.Parse(grpc::ByteBuffer(), &header).ok());
  EXPECT_FALSE(header.has_x());
}

TEST(ReceivedMessageTest, RefusesGarbageTruncationAndGroups) {
  const std::string good = SampleRequest().SerializeAsString();
  ReceivedMessage message;
  v1::StreamRequest header;
  int refused = 0;
  for (size_t size = 1; size < good.size(); ++size) {
    const absl::Status status = message.Parse(Buffer({good.substr(0, size)}), &header);
    v1::StreamRequest reference;
    // A prefix is refused exactly when protobuf refuses it.
    EXPECT_EQ(status.ok(), reference.ParseFromString(good.substr(0, size))) << size;
    if (!status.ok()) ++refused;
  }
  EXPECT_GT(refused, 50);
  EXPECT_EQ(
      message
          .Parse(Buffer({std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11)}), &header)
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message.Parse(Buffer({std::string("\x0b\x0c", 2)}), &header).message()),
              HasSubstr("wire type 3"));
  EXPECT_FALSE(message.Parse(Buffer({std::string("\x00\x01", 2)}), &header).ok());
}

TEST(ReceivedMessageTest, RefusesALengthPastItsParentEvenWhenTheBytesAreThere) {
  // forward (field 3) of 2 bytes holds x (field 10) claiming 5 bytes, which follow in the outer
  // message.
  const std::string bytes(
      "\x1a\x02\x52\x05"
      "\x08\x01\x08\x01\x08\x01",
      10);
  ReceivedMessage message;
  v1::StreamRequest header;
  const absl::Status status = message.Parse(Buffer({bytes}), &header);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReceivedMessageTest, BoundsTheHeader) {
  v1::NormalizeRequest original;
  for (int i = 0; i < ReceivedMessage::kMaxHeaderBytes; ++i) original.mutable_x()->add_shape(1);
  ReceivedMessage message;
  v1::NormalizeRequest header;
  const absl::Status status = message.Parse(Buffer({original.SerializeAsString()}), &header);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("> limit 1048576"));
}

TEST(MessageWriterTest, ProtobufReadsWhatItWrites) {
  v1::StreamResponse response;
  response.set_id(5);
  v1::NormalizeResponse* forward = response.mutable_forward();
  forward->mutable_timing()->set_device("cpu");
  v1::Tensor* y = forward->mutable_y();
  y->set_dtype(v1::DTYPE_BF16);
  y->add_shape(100000);
  v1::Tensor* rstd = forward->mutable_rstd();
  rstd->add_shape(0);
  MessageWriter writer;
  const std::string large(200000, 'y');
  writer.Attach(y, grpc::Slice(large));
  writer.Attach(rstd, grpc::Slice());
  const absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(response);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  v1::StreamResponse read;
  ASSERT_TRUE(read.ParseFromString(Flatten(*buffer)));
  EXPECT_EQ(read.id(), 5U);
  EXPECT_EQ(read.forward().y().data(), large);
  EXPECT_EQ(read.forward().timing().device(), "cpu");
  EXPECT_TRUE(read.forward().has_rstd());
  EXPECT_EQ(read.forward().rstd().data(), "");
}

TEST(MessageWriterTest, LeavesTensorBytesWhereTheyAre) {
  static std::vector<char> memory(1 << 20, 'z');
  static bool released;
  released = false;
  {
    v1::NormalizeResponse response;
    MessageWriter writer;
    writer.Attach(response.mutable_y(), grpc::Slice(memory.data(), memory.size(),
                                                    [](void*, size_t) { released = true; }));
    absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(response);
    ASSERT_TRUE(buffer.ok());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer->Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2U);
    EXPECT_EQ(slices[1].begin(), reinterpret_cast<const uint8_t*>(memory.data()));
    EXPECT_FALSE(released);
  }
  EXPECT_TRUE(released);
}

TEST(MessageWriterTest, RowsTravelLikeTensors) {
  v1::StreamRequest request;
  request.set_id(9);
  request.mutable_rows()->set_first_row(3);
  request.mutable_rows()->set_last(true);
  MessageWriter writer;
  const std::string large(100000, 'x');
  writer.Attach(request.mutable_rows()->mutable_x(), grpc::Slice(large));
  writer.Attach(request.mutable_rows()->mutable_mean(), grpc::Slice(std::string("mm")));
  const absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(request);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  v1::StreamRequest plain;
  ASSERT_TRUE(plain.ParseFromString(Flatten(*buffer)));
  EXPECT_EQ(plain.rows().x(), large);
  EXPECT_EQ(plain.rows().mean(), "mm");
  ReceivedMessage message;
  v1::StreamRequest header;
  ASSERT_TRUE(message.Parse(*buffer, &header).ok());
  EXPECT_EQ(header.rows().first_row(), 3);
  EXPECT_TRUE(header.rows().last());
  EXPECT_EQ(Bytes(message.payload(header.rows().x())), large);
  EXPECT_EQ(Bytes(message.payload(header.rows().mean())), "mm");
  EXPECT_EQ(message.payload(header.rows().dy()).size_bytes, 0);
}

TEST(MessageWriterTest, WhatIsDetachedIsNotWritten) {
  v1::NormalizeRequest request;
  MessageWriter writer;
  writer.Attach(request.mutable_x(), grpc::Slice(std::string("xxxx")));
  writer.Attach(request.mutable_weight(), grpc::Slice(std::string("ww")));
  const grpc::Slice x = writer.Detach(request.mutable_x()->mutable_data());
  EXPECT_EQ(std::string(x.begin(), x.end()), "xxxx");
  EXPECT_EQ(writer.Detach(request.mutable_bias()->mutable_data()).size(), 0U);
  v1::NormalizeRequest read;
  ASSERT_TRUE(read.ParseFromString(Flatten(*writer.Build(request))));
  EXPECT_EQ(read.x().data(), "");
  EXPECT_EQ(read.weight().data(), "ww");
}

TEST(MessageWriterTest, RoundTripsThroughTheReader) {
  v1::NormalizeRequest request;
  MessageWriter writer;
  writer.Attach(request.mutable_x(), grpc::Slice(std::string("xxxx")));
  writer.Attach(request.mutable_weight(), grpc::Slice(std::string("ww")));
  const absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(request);
  ASSERT_TRUE(buffer.ok());
  ReceivedMessage message;
  v1::NormalizeRequest header;
  ASSERT_TRUE(message.Parse(*buffer, &header).ok());
  EXPECT_EQ(Bytes(message.payload(header.x())), "xxxx");
  EXPECT_EQ(Bytes(message.payload(header.weight())), "ww");
}

TEST(MessageWriterTest, RefusesDataThatWasNotAttached) {
  v1::NormalizeRequest request;
  request.mutable_x()->set_data("sixteen bytes!!!");
  EXPECT_EQ(MessageWriter().Build(request).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace norm::wire
