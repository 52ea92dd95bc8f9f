# Ray's image with raycase at the pinned versions, for kuberay.yaml (and for cluster.yaml, to start nodes sooner):
#     docker build --push --tag registry.example.com/raycase:2.60.0-py311-gpu .
FROM rayproject/ray:2.60.0-py311-gpu
# Created by the image's user, so that pip can write here: WORKDIR would create it as root.
RUN mkdir /home/ray/raycase
WORKDIR /home/ray/raycase
ENV RAY_USAGE_STATS_ENABLED=0
COPY --chown=ray:users pyproject.toml README.md LICENSE constraints.txt ./
COPY --chown=ray:users raycase raycase
COPY --chown=ray:users jobs jobs
RUN pip install --no-cache-dir -c constraints.txt -e '.[documents,explore,facets,gpu,lora,minilm,search,serve]'
