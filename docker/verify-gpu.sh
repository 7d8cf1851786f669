#!/usr/bin/env bash
# What only a real TensorRT-LLM, GPU and Triton can show, compared with what is recorded of them (docs/verification.md).
# Run it once on a Linux host with an NVIDIA GPU, Docker with NVIDIA's container toolkit, 100 GB of disk and a network:
#   docker/verify-gpu.sh --base nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:... --output verification
# It builds two images, leaves them and the results, and nothing that runs. Exit code 0: no step failed; 1: one did.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: docker/verify-gpu.sh [--base IMAGE] [--model HUB_ID] [--revision REVISION] [--output DIR] [--gpu INDEX]
                            [--only STEP]... [--] [docker build options...]
  --base      NVIDIA's image, with its digest (default: the tag of docker/Dockerfile.serving)
  --model     a small Llama-like model of the hub; HF_TOKEN is used if it is set (default: the demo model is trained)
  --revision  of the model (default: main; its commit is in the report)
  --output    new directory for results, and for checkpoints and engines (default: ./verification)
  --gpu       the only GPU that is used (default: 0)
  --only      this step and no other; may be given again
TEXT
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 4
}

base=''
output='verification'
gpu='0'
model=()
only=()
while (($#)); do
    option="$1"
    case "$option" in
        --help | -h) usage && exit 0 ;;
        --)
            shift
            break
            ;;
        --base | --model | --revision | --output | --gpu | --only) ;;
        *) fail "unknown option $option; see --help" ;;
    esac
    (($# > 1)) || fail "$option needs a value"
    case "$option" in
        --base) base="$2" ;;
        --output) output="$2" ;;
        --gpu) gpu="$2" ;;
        --model | --revision) model+=("$option" "$2") ;;
        --only) only+=("$2") ;;
    esac
    shift 2
done
build_options=("$@")

repository="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
command -v docker >/dev/null || fail 'there is no docker on PATH'
docker info >/dev/null || fail 'the Docker engine does not answer'
if [[ -z "$base" ]]; then
    base="$(sed -n 's/^ARG TRITON_IMAGE=//p' "$repository/docker/Dockerfile.serving")"
    printf 'warning: %s is a tag; give --base with its digest for results that can be repeated\n' "$base" >&2
fi
[[ ! -e "$output" ]] || fail "$output exists; name a new directory with --output"
mkdir -p -- "$output"
output="$(cd -- "$output" && pwd)"

# As the Docker runner starts stages: its own user, no privileges, a read-only root.
user="$(id -u):$(id -g)"
if [[ "$(id -u)" -eq 0 ]]; then
    user='1000:1000'
    chown "$user" "$output"
fi

docker build --file "$repository/docker/Dockerfile.model" --tag llm-pipeline-model:verification \
    "${build_options[@]}" "$repository"
docker build --file "$repository/docker/Dockerfile.serving" --tag llm-pipeline-serving:verification \
    --build-arg "TRITON_IMAGE=$base" "${build_options[@]}" "$repository"
serving="$(docker image inspect --format '{{.Id}}' llm-pipeline-serving:verification)"

container="llm-pipeline-verification-$$"
trap 'docker rm --force "$container" >/dev/null 2>&1 || true' EXIT

run_container() {
    local image="$1"
    shift
    docker run --rm --init --name "$container" --gpus "device=$gpu" --user "$user" --entrypoint python3 \
        --read-only --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777 --cap-drop ALL --security-opt no-new-privileges \
        --volume "$repository:/source:ro" --env PYTHONPATH=/source:/source/plugins \
        --shm-size 8g --ulimit memlock=-1 --env HOME=/tmp "${secrets[@]}" \
        --env "LLM_PIPELINE_CONTAINER=$serving of $base" --volume "$output:/verification" --workdir /verification \
        "$image" -m llm_pipeline.verification "$@"
}

secrets=(--env HF_TOKEN) # by its name, so that its value is on no command line; for the download alone
run_container llm-pipeline-model:verification prepare --output /verification/prepared "${model[@]}"

check=(check --prepared /verification/prepared --output /verification/results --image "$base")
if ((${#only[@]})); then
    check+=(--only "${only[@]}")
fi
status=0
secrets=()
run_container llm-pipeline-serving:verification "${check[@]}" || status=$?
printf 'results: %s/results/verification.json and verification.txt\n' "$output"
exit "$status"
