# normd's image. Needs BuildKit (Docker 23 or later) or buildah:
#   docker build -t normd .                                           kernels for every GPU from Turing on
#   docker build -t normd --build-arg CUDA_ARCHITECTURES=90-real .    for one
#   docker build --target test .                                      runs the tests that need no GPU
# deploy/image/prove.sh builds this file and tries what comes out.

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS cuda

FROM debian:bookworm-slim AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
COPY deploy/install-deps.sh /source/deploy/install-deps.sh
# hadolint ignore=DL3008
RUN /source/deploy/install-deps.sh \
 && apt-get install -y -q --no-install-recommends ccache \
 && rm -rf /var/lib/apt/lists/*
COPY --from=cuda /usr/local/cuda-13.0 /usr/local/cuda-13.0
RUN ln -s cuda-13.0 /usr/local/cuda
ENV PATH=/usr/local/cuda/bin:$PATH \
    LANG=C.UTF-8 \
    CCACHE_DIR=/var/cache/ccache \
    CCACHE_BASEDIR=/source \
    CCACHE_NOHASHDIR=1
WORKDIR /source
COPY . .
# A CMake list, or all: those of deploy/cmake/NormCuda.cmake.
ARG CUDA_ARCHITECTURES=all
# The driver belongs to the host. Kernels and the CUDA runtime are inside the programs; what else they load is Debian's.
# Warnings are errors as in the tests, so that both stages share what the compiler cache holds.
RUN --mount=type=cache,target=/var/cache/ccache,id=normd-ccache \
    NORM_CUDA_ARCHITECTURES=$CUDA_ARCHITECTURES ./deploy/build.sh build/image -DNORM_BUILD_TESTS=OFF \
      -DNORM_STATIC_CUDA=ON -DNORM_WARNINGS_AS_ERRORS=ON -- normd normctl \
 && cmake --install build/image --component normd --prefix /opt/normd --strip \
 && ./deploy/image/debian-packages.sh /opt/normd/bin/* >/opt/normd/debian-packages.txt \
 && ./deploy/image/compiled-in.sh >/opt/normd/compiled-in.txt

FROM build AS test
RUN --mount=type=cache,target=/var/cache/ccache,id=normd-ccache ./tests/run.sh

FROM debian:bookworm-slim AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
COPY --from=build /opt/normd /opt/normd
COPY deploy/image/normd.flags /etc/normd/normd.flags
# hadolint ignore=DL3008
RUN --mount=type=bind,from=build,source=/source/deploy/image,target=/tmp/image \
    apt-get update -q \
 && xargs -a /opt/normd/debian-packages.txt apt-get install -y -q --no-install-recommends \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && groupadd --gid 8470 normd \
 && useradd --uid 8470 --gid normd --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin normd \
 && /tmp/image/sbom.sh "$(/opt/normd/bin/normctl --version)" /opt/normd/compiled-in.txt >/opt/normd/sbom.cdx.json
ENV PATH=/opt/normd/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0
# By number, so that Kubernetes can see that it is not root.
USER 8470:8470
EXPOSE 8470 8471
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["normctl", "health", "--attempts", "1", "--timeout", "4s"]
ENTRYPOINT ["/opt/normd/bin/normd", "--flagfile=/etc/normd/normd.flags"]
# Arguments come in its place: who gives any also says whether there is TLS.
CMD ["--insecure"]
# Last: they change with every commit.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="normd" \
      org.opencontainers.image.description="Normalizes tensors on GPUs for other processes, over gRPC" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/debian:bookworm-slim"
