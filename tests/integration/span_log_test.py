#!/usr/bin/env python3
"""normd's span log read by OpenTelemetry's own schema, and normctl's part of a trace. Usage: span_log_test.py ROOT NORMD NORMCTL"""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    from google.protobuf import json_format
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError:
    print("SKIPPED: opentelemetry-proto is not installed (deploy/install-deps.sh --test)")
    sys.exit(0)

ROOT = pathlib.Path(sys.argv[1]).resolve()
NORMD, NORMCTL = sys.argv[2:4]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TENSOR = f"{ROOT}/tests/data/embeddings.safetensors:x"


def base64_ids(value):
    """OTLP's JSON has trace and span ids in hexadecimal; that of protobuf, which everything else follows, in base64."""
    if isinstance(value, dict):
        return {key: base64.b64encode(bytes.fromhex(one)).decode() if key in ("traceId", "spanId", "parentSpanId") else base64_ids(one)
                for key, one in value.items()}
    return [base64_ids(one) for one in value] if isinstance(value, list) else value


def read(path):
    """Every span of the file, each line of which must be a TracesData without unknown fields."""
    spans = []
    for line in path.read_text().splitlines():
        traces = json_format.Parse(json.dumps(base64_ids(json.loads(line))), trace_pb2.TracesData())
        assert len(traces.resource_spans) == 1, line
        resource = {one.key: one.value.string_value for one in traces.resource_spans[0].resource.attributes}
        assert resource["service.name"] == "normd" and resource["service.instance.id"], line
        spans.extend(traces.resource_spans[0].scope_spans[0].spans)
    return spans


class SpanLogTest(unittest.TestCase):
    def run_beside_normd(self, command, *flags, environment=None):
        """Exit code, output, spans."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "spans.jsonl"
            done = subprocess.run(
                [ROOT / "deploy/with-normd.sh", NORMD, "--device=cpu", f"--trace_log={path}", *flags, "--", "sh", "-c", command],
                capture_output=True, text=True, env={**os.environ, "TMPDIR": folder, **(environment or {})})
            return done.returncode, done.stdout + done.stderr, read(path)

    def of_trace(self, spans, kind):
        return [span for span in spans if span.trace_id.hex() == TRACE and span.kind == kind]

    def test_lines_are_traces_data(self):
        code, output, spans = self.run_beside_normd(
            f'{NORMCTL} rmsnorm --server "$NORMD_SERVER" --input {TENSOR} --output "$TMPDIR/whole.npy"'
            f' --traceparent 00-{TRACE}-{PARENT}-01 &&'
            f'{NORMCTL} rmsnorm --server "$NORMD_SERVER" --input {TENSOR} --output "$TMPDIR/rows.npy" --stream-above 0'
            f' --traceparent 00-{TRACE}-{PARENT}-01')
        self.assertEqual(code, 0, output)
        servers = self.of_trace(spans, trace_pb2.Span.SPAN_KIND_SERVER)
        self.assertEqual([span.name for span in servers],
                         ["norm.v1.NormalizationService/Normalize", "norm.v1.NormalizationService/NormalizeStream"])
        for span in servers:
            self.assertEqual(span.parent_span_id.hex(), PARENT)
            self.assertEqual(span.status.code, trace_pb2.Status.STATUS_CODE_UNSET)
            self.assertGreater(span.end_time_unix_nano, span.start_time_unix_nano)
        inner = self.of_trace(spans, trace_pb2.Span.SPAN_KIND_INTERNAL)
        parents = {span.span_id: span for span in servers + inner}
        for span in inner:
            parent = parents[span.parent_span_id]
            self.assertGreaterEqual(span.start_time_unix_nano, parent.start_time_unix_nano)
            self.assertLessEqual(span.end_time_unix_nano, parent.end_time_unix_nano)
        stages = [span.name for span in inner if span.parent_span_id == servers[0].span_id]
        self.assertEqual(stages, ["decode", "queue", "copy_in", "kernel", "encode", "send"])
        rows = [span for span in inner if span.name == "stream request"]
        self.assertEqual([event.name for event in rows[0].events], ["launch"] * len(rows[0].events))
        self.assertGreater(len(rows[0].events), 0)
        self.assertEqual(len(spans), len(servers) + len(inner))  # nothing else was sampled

    def test_the_environment_says_the_parent(self):
        code, output, spans = self.run_beside_normd(
            f'{NORMCTL} info --server "$NORMD_SERVER"',
            environment={"TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "TRACESTATE": "rojo=1"})
        self.assertEqual(code, 0, output)
        for span in spans:
            self.assertEqual((span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state), (TRACE, PARENT, "rojo=1"))
        self.assertGreaterEqual(len(spans), 1)
        code, output, spans = self.run_beside_normd(f'{NORMCTL} info --server "$NORMD_SERVER"', environment={"TRACEPARENT": "nonsense"})
        self.assertEqual((code, spans), (0, []), output)

    def test_errors_name_the_request(self):
        code, output, spans = self.run_beside_normd(
            f'{NORMCTL} rmsnorm --server "$NORMD_SERVER" --input {TENSOR} --eps -1 --output "$TMPDIR/y.npy"; test $? = 1',
            "--trace_sample_ratio=1")
        self.assertEqual(code, 0, output)
        printed = re.search(r"INVALID_ARGUMENT: .* \(request id ([0-9a-f]{16})\)\n", output)
        self.assertTrue(printed, output)
        failed = [span for span in spans if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR]
        self.assertEqual(len(failed), 1)
        attributes = {one.key: one.value.string_value for one in failed[0].attributes}
        self.assertEqual(attributes["normd.request_id"], printed.group(1))
        self.assertEqual(attributes["error.type"], "INVALID_ARGUMENT")
        self.assertEqual(failed[0].parent_span_id, b"")

    def test_bad_usage(self):
        done = subprocess.run([NORMCTL, "info", "--traceparent", "00-1-2-01"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("is no W3C trace context", done.stderr)
        for flags, rule in ((["--trace_sample_ratio=1"], "needs --trace_log"),
                            (["--trace_log=x", "--trace_sample_ratio=2"], "must be in [0, 1]"),
                            (["--trace_log=x", "--trace_sample_ratio=nan"], "must be in [0, 1]"),
                            (["--trace_log=-", "--processes=2"], "must be a file")):
            done = subprocess.run([NORMD, "--device=cpu", *flags], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(rule, done.stderr)
        done = subprocess.run([NORMD, "--device=cpu", "--trace_log=/no/such/folder/x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--trace_log: cannot write /no/such/folder/x: No such file or directory", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
