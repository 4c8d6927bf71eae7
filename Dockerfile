# The image of configs/cluster/*.yaml, for the driver and for every node:
#
#   docker build -t registry.example/shardproof:0.1.0 .
#
# glibc of Debian 13 is new enough for the solvers' wheels on x86-64 and on arm64 (2.38).
FROM python:3.11-slim-trixie

# KubeRay asks a node whether it is alive with wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 shardproof

WORKDIR /opt/shardproof
# What changes seldom first: the dependencies, as pinned for CI.
COPY requirements/runtime.lock requirements/
RUN pip install --no-cache-dir -r requirements/runtime.lock

COPY pyproject.toml README.md LICENSE ./
COPY shardproof shardproof
COPY engine engine
COPY solvers solvers
COPY partition partition
COPY frontends frontends
COPY checker checker
COPY cluster cluster
COPY diagnosis diagnosis
COPY mutation mutation
COPY configs configs
RUN pip install --no-cache-dir --no-deps .

USER shardproof
WORKDIR /home/shardproof
# A shell finds `ray` and `shardproof`; KubeRay gives its own command.
CMD ["shardproof", "--help"]
