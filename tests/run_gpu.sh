#!/usr/bin/env bash
# Runs inside the bundle on a machine with an NVIDIA GPU: every gpu-labelled test program, the real inputs against a live
# normd, the soak, and compute-sanitizer over the kernel tests. Ends with a short table. Exit 0 only if every row is ok.
# Usage: run_gpu.sh [quick|full|bench]   (default full; quick shortens the soak and the sanitizers)
# bench measures instead: results.json (with other libraries, where python3 has PyTorch), ladder.json, roofline.json and plots
# (where it has matplotlib) in LOG_DIR.
# Environment: LOG_DIR (default: logs beside the bundle's bin), SANITIZER_FILTER (GoogleTest filter for the sanitizers),
# SANITIZER_LIMIT (seconds for one sanitizer on one program), SOAK_SECONDS, PEERS_LIMIT (seconds for other libraries). A part of the
# machine is enough: CUDA_VISIBLE_DEVICES and taskset hold (tests that need two GPUs are skipped where one is seen).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# sharded COMMAND...: a GoogleTest command as several processes side by side, since the oracle on the CPU is what takes time.
# Prints the shards' output one after another; fails if any of them failed. MOST_SHARDS: no more processes than this.
sharded() {
  local shards=$(($(nproc) < 15 ? $(nproc) : 15)) folder shard failures=0 pids=()
  if ((shards > ${MOST_SHARDS:-15})); then shards=$MOST_SHARDS; fi
  folder=$(mktemp -d)
  for ((shard = 0; shard < shards; shard++)); do
    # A group of its own: what a tool started ends with it, a hung kernel too.
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard setsid "$@" >"$folder/$shard" 2>&1 &
    pids+=($!)
  done
  # shellcheck disable=SC2064  # the processes of now
  trap "kill -KILL ${pids[*]/#/-} 2>/dev/null || true" TERM
  for ((shard = 0; shard < shards; shard++)); do wait "${pids[shard]}" || failures=$((failures + 1)); done
  cat "$folder"/*
  rm -rf "$folder"
  ((failures == 0))
}
if [[ ${1:-} == --sharded ]]; then
  shift
  sharded "$@"
  exit
fi

mode=${1:-full}
case "$mode" in
  quick)
    soak_seconds=${SOAK_SECONDS:-15} sanitizer_limit=${SANITIZER_LIMIT:-150} sanitizer_tools=(memcheck racecheck)
    sanitizer_filter='*Aliasing*:*FieldCase*:*Determinism*-*Million*' racecheck_filter='Shapes/*/BF16Rows3Hidden1024'
    ;;
  full)
    soak_seconds=${SOAK_SECONDS:-60} sanitizer_limit=${SANITIZER_LIMIT:-300} sanitizer_tools=(memcheck racecheck initcheck synccheck)
    # Every family of kernels once for each dtype, on few rows: a tool slows kernels down, and repeats find nothing new.
    sanitizer_filter=
    for shape in Rows0Hidden64 Rows6Hidden1 Rows5Hidden33 Rows229Hidden71 Rows16Hidden128 Rows70000Hidden8 Rows3Hidden1023 \
      Rows3Hidden1024 Rows65Hidden1536 Rows2Hidden4093 Rows2Hidden4096 Rows3Hidden5000 Rows2Hidden8191 Rows3Hidden8192 \
      Rows3Hidden12289 Rows2Hidden16384 Rows1Hidden65536 Rows2Hidden131072 Rows2Hidden200003; do
      sanitizer_filter+="Shapes/*NormForwardTest.*$shape:Shapes/*NormBackwardTest.*$shape:"
    done
    sanitizer_filter+='*CudaLongRowsTest.EverySize*:*CudaLongRowsTest.RowsOutOfRange*:*CudaLongRowsTest.InPlace*:'
    sanitizer_filter+='Formats/*.MatchesReference/*:Formats/*ManyShortRows*:*MoreSegmentsThanOneLaunch*:'
    sanitizer_filter+='*SegmentsTest.EverySegment*/F32:*SegmentsTest.EverySegment*/BF16:*CudaBatchNormSegmentsTest*:'
    sanitizer_filter+='Shapes/BatchNormTest.*:*BatchNormRowsTest.*MatchesReference*:*CudaBatchNormResidentTest.Every*:'
    sanitizer_filter+='*BitEqualityTest.ARowAlone*F16:*BitEqualityTest.ARowAlone*/F32:*BitEqualityTest.Addresses*:'
    sanitizer_filter+='*BatchNormInferenceTest.BothDirections*:*ExtremesTest*:*Aliasing*:*FieldCase*:'
    sanitizer_filter+='*RowNormBackwardMean*:DeviceCaseTest*:Ladder*'
    sanitizer_filter+='-*Million*:*Batch140000*:*Batch65536*:*Channels70000*:*Spatial70001*'
    # racecheck takes seconds a test. No rows that many blocks share: their kernels are left out below, and the tool ends by an error of
    # its own there ("failed to handle a hardware exception").
    racecheck_filter=
    for case in BF16Rows229Hidden71 BF16Rows3Hidden1024 BF16Rows65Hidden1536 BF16Rows2Hidden16384 F32Rows3Hidden1024 \
      F32Rows65Hidden1536; do
      racecheck_filter+="Shapes/LayerNorm*.MatchesReference/$case:"
    done
    racecheck_filter+='Shapes/RmsNorm*.MatchesReference/BF16Rows3Hidden1024:*BatchNormInferenceTest.BothDirections*/BF16:'
    for case in Batch5Channels8Spatial49 Batch2Channels65Spatial33 Batch1Channels64Spatial4096; do
      racecheck_filter+="Shapes/BatchNormTest.Training*/F32$case:Shapes/BatchNormTest.Training*/BF16$case:"
    done
    racecheck_filter+='*BatchNormRowsTest.*MatchesReference/BF16Values4300*:Formats/*InBothRoundingOrders/f8e4m3perrowBF16:'
    racecheck_filter+='*CudaBatchNormSegmentsTest.Every*Batch3*:'
    racecheck_filter+='*RowNormBackwardMean*/F32Hidden130:*RowNormBackwardMean*/BF16Hidden1000:*RowNormBackwardMean*/BF16Hidden1023'
    ;;
  bench) ;;
  *)
    echo "usage: run_gpu.sh [quick|full|bench]" >&2
    exit 2
    ;;
esac
logs=${LOG_DIR:-$root/logs}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd) # a path relative to the caller's folder
cd "$root"

if ! nvidia-smi -L; then
  echo "run_gpu.sh: no NVIDIA GPU here" >&2
  exit 1
fi

rows=()
failed=0
# step NAME LIMIT_SECONDS COMMAND...: runs, logs, notes a row.
step() {
  local name=$1 limit=$2 start=$SECONDS status=0 detail
  shift 2
  timeout -k 10 "$limit" "$@" >"$logs/$name.log" 2>&1 || status=$?
  # A driver or card that cannot run these programs: they skip all, and exit with 0.
  if ((status == 0)) && grep -q '^\[  SKIPPED \] every test of this program' "$logs/$name.log"; then status=77; fi
  detail=$(awk '/^\[  PASSED  \]/ { tests += $4 } /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
    /ERROR SUMMARY: [0-9]+ error/ { tools++; errors += $4 } /RACECHECK SUMMARY:/ { tools++; errors += $4 }
    / passed, [0-9]+ failed/ { line = $0 } /^soak/ { line = $0 } /^[0-9]+ (cases|pictures)/ { line = $0 }
    END { if (tests) printf "%d tests passed%s", tests, skipped ? sprintf(", %d skipped", skipped) : ""
      if (tools) printf ", %d errors", errors
      if (!tests) printf "%s", line }' "$logs/$name.log")
  if ((status == 0)); then
    rows+=("$(printf '%-44s ok      %5d s  %s' "$name" $((SECONDS - start)) "$detail")")
  else
    ((status == 124 || status == 137)) && detail="timed out after $limit s"
    failed=$((failed + 1))
    rows+=("$(printf '%-44s FAILED  %5d s  exit %d %s' "$name" $((SECONDS - start)) "$status" "$detail")")
    echo "---- $name (exit $status), the end of its log:"
    tail -n 25 "$logs/$name.log"
  fi
}

# report: the rows, and how many failed; the exit status of the whole.
report() {
  echo
  printf '%s\n' "${rows[@]}"
  echo
  echo "$((${#rows[@]} - failed)) passed, $failed failed"
  ((failed == 0))
}

if [[ $mode == bench ]]; then
  if ! [[ -x bin/normbench ]]; then
    echo "run_gpu.sh: no normbench here (built without CUDA)" >&2
    exit 1
  fi
  commit=$(sed -n 's/^commit=//p' share/normbench/source.txt)
  source_hash=$(sed -n 's/^source_hash=//p' share/normbench/source.txt)
  noted=(--commit "${commit:-unknown}" --source-hash "${source_hash:-unknown}")
  peers_limit=${PEERS_LIMIT:-240}
  step kernels 900 bin/normbench kernels "${noted[@]}" --json "$logs/results.json"
  step ladder 300 bin/normbench ladder "${noted[@]}" --json "$logs/ladder.json"
  step roofline 60 bin/normbench roofline "${noted[@]}" --json "$logs/roofline.json"
  if python3 -c 'import torch' 2>/dev/null; then
    step accuracy 300 bin/normbench accuracy
    step peers $((peers_limit + 60)) bin/normbench peers "${noted[@]}" --json "$logs/results.json" --limit "$peers_limit"
  else
    echo "run_gpu.sh: SKIPPED: accuracy and peers: python3 has no PyTorch here"
  fi
  if python3 -c 'import matplotlib' 2>/dev/null; then
    files=()
    for name in results ladder roofline; do [[ -s $logs/$name.json ]] && files+=("$logs/$name.json"); done
    step plot 120 bin/normbench plot "${files[@]}" --out "$logs/plots"
  else
    echo "run_gpu.sh: SKIPPED: plots: python3 has no matplotlib here"
  fi
  for name in kernels ladder roofline peers; do
    if [[ -s $logs/$name.log ]]; then printf '\n---- %s\n' "$name" && cat "$logs/$name.log"; fi
  done
  report
  exit
fi

programs=()
while IFS= read -r program; do if [[ -n $program ]]; then programs+=("$program"); fi; done <tests/gpu_programs.txt
if ((${#programs[@]} == 0)); then
  echo "run_gpu.sh: tests/gpu_programs.txt names no program: not a bundle of a build with CUDA" >&2
  exit 1
fi
for program in "${programs[@]}"; do
  case "$program" in
    *_bench | *_soak) ;;
    *_loss_test) step "$program" 300 "bin/$program" ;; # it ruins its CUDA context on purpose
    *) step "$program" 900 "$root/tests/run_gpu.sh" --sharded "bin/$program" ;;
  esac
done

# shellcheck disable=SC2016  # expanded by the inner shell
step real_inputs 300 deploy/with-normd.sh bin/normd --device=cuda -- \
  sh -c 'bin/normctl info --server "$NORMD_SERVER" && bin/normctl verify tests/data/manifest.json --server "$NORMD_SERVER"'

for program in "${programs[@]}"; do
  if [[ $program == *_soak ]]; then
    step "$program" $((soak_seconds + 120)) deploy/with-normd.sh bin/normd --device=cuda -- \
      sh -c "bin/$program --server=\"\$NORMD_SERVER\" --metrics=\"\$NORMD_METRICS\" --seconds=$soak_seconds"
  fi
done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [[ -z $sanitizer ]]; then
  failed=$((failed + 1))
  rows+=("compute-sanitizer                            FAILED  not found")
else
  for program in "${programs[@]}"; do
    if [[ $program != *_cuda_test ]]; then continue; fi
    for tool in "${sanitizer_tools[@]}"; do
      options=(--tool "$tool" --error-exitcode 9)
      # One test asks for more memory than there is.
      if [[ $tool == memcheck ]]; then options+=(--report-api-errors no); fi
      filter=$sanitizer_filter
      if [[ $tool == racecheck ]]; then
        filter=$racecheck_filter
        # racecheck (2025.3) does not see the order that these kernels keep: by an mbarrier at which one lane arrives for its warp,
        # and by named barriers over which groups of warps take turns. It reports both in kernels of ten lines that have no race;
        # an arrival of every lane, or one hand-over alone, it understands. RowBackwardLong, whose warps leave their sums of a row to
        # each other by such an mbarrier, has 88 to 11068 hazards for it, and none when built with an arrival of every lane.
        for kernel in RowForwardRing RowBackwardGroups RowBackwardLong; do options+=(--kernel-name-exclude "kernel_substring=$kernel"); done
      fi
      filter=${SANITIZER_FILTER:-$filter}
      if ! list=$("bin/$program" --gtest_filter="$filter" --gtest_list_tests); then
        failed=$((failed + 1))
        rows+=("$(printf '%-44s FAILED           cannot list its tests' "$program.$tool")")
        continue
      fi
      # A process without a test makes no CUDA call, and that is an error to the tool.
      tests=$(grep -c '^ ' <<<"$list" || true)
      if ((tests == 0)); then continue; fi
      # Each tensor in an allocation of its own: what is read past its end is seen.
      step "$program.$tool" "$sanitizer_limit" env NORM_TEST_SEPARATE_ALLOCATIONS=1 MOST_SHARDS="$tests" "$root/tests/run_gpu.sh" --sharded \
        "$sanitizer" "${options[@]}" "bin/$program" --gtest_filter="$filter"
    done
  done
fi

if [[ -s $logs/real_inputs.log ]]; then
  echo
  cat "$logs/real_inputs.log"
fi
report
