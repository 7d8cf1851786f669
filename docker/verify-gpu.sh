#!/usr/bin/env bash
# One release on a GPU host, from the hub to a server behind Envoy, and what was seen of it (docs/verification.md).
# It needs Linux, an NVIDIA GPU, Docker with NVIDIA's container toolkit, about 100 GB of disk and a network:
#   docker/verify-gpu.sh --target h100 --model Qwen/Qwen2.5-0.5B-Instruct --output verification
# Images and results are left, and nothing that runs. The exit code is that of `llm-pipeline run`: 0, it was released.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: docker/verify-gpu.sh --target NAME [--model HUB_ID] [--revision REVISION] [--recipe NAME] [--base IMAGE]
                            [--output DIR] [--gpu INDEX] [-- docker build options...]
  --target    a file of configs/targets for this GPU: it names the engine, too (h100, h100_vllm, l4, ...)
  --model     a chat model of the hub (default: Qwen/Qwen2.5-0.5B-Instruct); HF_TOKEN is used if it is set
  --revision  of the model (default: main; its commit is in the report)
  --recipe    a file of configs/quantization (default: fp8_chat)
  --base      NVIDIA's image, with its digest (default: the target's `container`, a tag)
  --output    new directory for configs, store and logs (default: ./verification)
  --gpu       the only GPU that is used (default: 0)
TEXT
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 4
}

target='' base='' output='verification' gpu='0'
model='Qwen/Qwen2.5-0.5B-Instruct' revision='main' recipe='fp8_chat'
while (($#)); do
    case "$1" in
        --help | -h) usage && exit 0 ;;
        --) shift && break ;;
        --target | --base | --output | --gpu | --model | --revision | --recipe)
            (($# > 1)) || fail "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        *) fail "unknown option $1; see --help" ;;
    esac
done
build_options=("$@")

repository="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
command -v docker >/dev/null || fail 'there is no docker on PATH'
docker info >/dev/null || fail 'the Docker engine does not answer'
[[ -f "$repository/configs/targets/$target.yaml" ]] || fail "--target names no file of configs/targets: '$target'"
[[ ! -e "$output" ]] || fail "$output exists; name a new directory with --output"
if [[ -z "$base" ]]; then
    base="$(sed -n 's/^container: \([^ ]*\).*/\1/p' "$repository/configs/targets/$target.yaml")"
    printf 'warning: %s is a tag; give --base with its digest for results that can be repeated\n' "$base" >&2
fi

mkdir -p -- "$output"
output="$(cd -- "$output" && pwd)"
cp -r -- "$repository/configs" "$output/configs"
# The demo's gates are for a tiny model on a CPU: latencies, margins and golden answers that any model and GPU may meet.
sed -e 's/first_token_milliseconds: .*/first_token_milliseconds: 2000/' -e 's/ margin: .*/ margin: 0.05/' \
    -e 's/end_to_end_milliseconds: .*/end_to_end_milliseconds: 20000/' -e 's/task_margin: .*/task_margin: 0.05/' \
    -e 's/golden_match_fraction: .*/golden_match_fraction: 0.5/' -e 's/ready_timeout_seconds: .*/ready_timeout_seconds: 900/' \
    "$repository/configs/policies/demo.yaml" >"$output/configs/policies/verification.yaml"
# It is built in this container; staging, blue and green share the GPU.
sed -i 's/^environment: .*/environment: engine/' "$output/configs/targets/$target.yaml"
grep -q '^runtime:' "$output/configs/targets/$target.yaml" ||
    printf 'runtime: { kv_cache: { free_memory_fraction: 0.25 } }\n' >>"$output/configs/targets/$target.yaml"
cat >"$output/configs/deployments/verification.yaml" <<YAML
store: /verification/store
work_root: /verification/work
state_root: /verification/state
environments: { control: /opt/model/bin/python, model: /opt/model/bin/python, engine: /opt/llm-pipeline/python/bin/python3 }
triton_home: /opt/tritonserver
places:
  $target:
    environment: engine
    staging: { http: 18400, grpc: 18401, metrics: 18402, openai: 18403, gpus: [0] }
    blue: { http: 18410, grpc: 18411, metrics: 18412, openai: 18413, gpus: [0] }
    green: { http: 18420, grpc: 18421, metrics: 18422, openai: 18423, gpus: [0] }
    router: { port: 18000, admin_port: 18001 }
YAML
cat >"$output/configs/releases/verification.yaml" <<YAML
description: One release on this host.
model: { id: $model, revision: $revision }
baseline: { dtype: bfloat16 }
recipes: [$recipe]
targets: [$target]
policy: verification
deployment: verification
evaluation: { tasks: [gsm8k, arc_easy], served_tasks: [gsm8k], batch_size: 32, maximum_length: 4096 }
workload:
  prompts: workloads/chat-example.jsonl
  rate_per_second: 2
  duration_seconds: 60
  output_tokens: { kind: lognormal, median: 32, p95: 90, minimum: 2, maximum: 128 }
  seed: 7
approval: { required: true, timeout_hours: 1 }
YAML

# As the Docker runner starts stages: its own user, no privileges, a read-only root.
user="$(id -u):$(id -g)"
if [[ "$(id -u)" -eq 0 ]]; then
    user='1000:1000'
    chown -R "$user" "$output"
fi

build() {
    docker build --file "$repository/docker/Dockerfile.$1" --tag "llm-pipeline-$1:verification" "${@:2}" \
        "${build_options[@]}" "$repository"
}
build model
build serving --build-arg "TRITON_IMAGE=$base"
build verify --build-arg MODEL_IMAGE=llm-pipeline-model:verification \
    --build-arg SERVING_IMAGE=llm-pipeline-serving:verification
image="$(docker image inspect --format '{{.Id}}' llm-pipeline-verify:verification)"

container="llm-pipeline-verification-$$"
trap 'docker rm --force "$container" >/dev/null 2>&1 || true' EXIT
status=0
docker run --rm --init --name "$container" --gpus "device=$gpu" --user "$user" --entrypoint bash \
    --read-only --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777 --cap-drop ALL --security-opt no-new-privileges \
    --shm-size 8g --ulimit memlock=-1 --env HOME=/tmp --env HF_HOME=/verification/hub --env HF_TOKEN \
    --env "LLM_PIPELINE_CONTAINER=$image of $base" --volume "$output:/verification" --workdir /verification \
    "$image" -c '
        pipeline() { printf "\n== llm-pipeline %s\n" "$*"; /opt/model/bin/python -m llm_pipeline "$@"; }
        nvidia-smi
        for python in /opt/model/bin/python /opt/llm-pipeline/python/bin/python3; do
            "$python" -m pip freeze | grep -iE "^(llm.pipeline|modelopt|nvidia-modelopt|tensorrt|torch|transformers|vllm)"
        done
        pipeline doctor configs/releases/verification.yaml # what fails here is said, and does not end it
        pipeline plan configs/releases/verification.yaml || exit
        pipeline run configs/releases/verification.yaml --approve
        status=$?
        pipeline status --deployment configs/deployments/verification.yaml
        nvidia-smi --query-gpu=name,memory.used --format=csv
        exit "$status"
    ' 2>&1 | tee "$output/verification.txt" || status=$?
printf 'all that was printed: %s/verification.txt; the report and its store: %s/store\n' "$output" "$output"
exit "$status"
